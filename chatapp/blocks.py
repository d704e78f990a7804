"""What a transcript is made of: what the user said, what the model replied, and notices."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.timer import Timer
from textual.widget import AwaitMount
from textual.widgets import Static

from chatapp.block import ONLY, Block, Severity, Versions
from chatapp.figures import count
from chatapp.markdown_view import MarkdownView
from chatapp.message_view import MessageView
from chatapp.plain_container import PlainContainer
from chatapp.plain_view import PlainView
from chatapp.rows_view import RowsView
from chatapp.takings import Code, Link
from chatapp.thought import ThoughtView
from runtime.protocol import Channel, FinishReason

FRAME = 1 / 12  # seconds between two drawings of a reply

Ending = FinishReason | Literal["failed", "partial"]

_FOOTERS: dict[Ending, str] = {
    "stop": "",
    "length": "The reply reached its token limit. /continue goes on.",
    "cancelled": "stopped · /continue goes on",
    "budget": "The thought reached its budget and was closed.",
    "failed": "broken off · /continue goes on",
    "partial": "unfinished: the chat ended while this was being written · /continue goes on",
}
_SIGNS: dict[Severity, str] = {"info": "·", "warning": "!", "error": "✗"}
EMPTY = "The model ended its reply without a word."


class UserBlock(MessageView, Block):
    is_message = True

    def __init__(self, text: str, node: int | None = None, versions: Versions = ONLY) -> None:
        super().__init__(text, foot=_versions_label(versions), classes="block")
        self.text = text
        self.node, self.versions = node, versions

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,)

    @property
    def copied(self) -> str:
        return self.written

    def views(self) -> list[RowsView]:
        return [self]

    async def unfold(self, number: int) -> RowsView:
        if self.folded:
            self.action_fold()
        return self

    async def fold(self) -> None:
        if self.can_focus:
            self.action_fold()

    def fresh(self) -> UserBlock:
        return UserBlock(self.text, self.node, self.versions)

    def foot_clicked(self, x: int) -> None:
        if self.node is not None:
            self.post_message(self.Switched(self.node, _step_at(x)))


class NoticeBlock(PlainView, Block):
    """A sentence of the program itself."""

    def __init__(self, text: str, severity: Severity = "info") -> None:
        super().__init__(text, sign=_SIGNS[severity], classes=f"block -{severity}")
        self.text = text
        self.severity = severity

    def fresh(self) -> NoticeBlock:
        return NoticeBlock(self.text, self.severity)


class PageBlock(MarkdownView, Block):
    """A page of Markdown by the program itself."""

    def __init__(self, markdown: str) -> None:
        super().__init__(markdown, classes="block")
        self.markdown = markdown

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.markdown,)

    def views(self) -> list[RowsView]:
        return [self]

    def fresh(self) -> PageBlock:
        return PageBlock(self.markdown)


class ReplyBlock(Vertical, PlainContainer, Block):
    """A reply: as it comes, through `prefill`, `feed` and `finish`; or of the past, when made with an `ending`.

    What comes is drawn every FRAME seconds at most.
    """

    is_message = True

    def __init__(
        self,
        answer: str = "",
        thought: str = "",
        ending: Ending | None = None,
        *,
        thought_closed: bool = True,
        thinking_ms: float | None = None,
        thinking_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        node: int | None = None,
        versions: Versions = ONLY,
    ) -> None:
        super().__init__(classes="block")
        self.node, self.versions = node, versions
        self._ending = ending
        self._thought_closed = thought_closed
        self._thinking_ms = thinking_ms
        self._thinking_tokens = thinking_tokens
        self._clock = clock
        self._parts: list[str] = [answer] if answer else []
        self._pending: list[tuple[Channel, str]] = []
        self._timer: Timer | None = None
        self._ticker: Timer | None = None
        self._drawn = float("-inf")
        self._thinking_since: float | None = None
        self._thinking_until: float | None = None
        self._thought_view = ThoughtView(thought) if thought else None
        self._answer_view = MarkdownView(answer) if ending is not None else MarkdownView()
        self._footer: Static | None = None
        self._footer_text = ""

    @property
    def answer(self) -> str:
        """The Markdown received so far, as the model wrote it."""
        return "".join(self._parts)

    @property
    def thought(self) -> str:
        waiting = "".join(text for channel, text in self._pending if channel == "thinking")
        return (self._thought_view.text if self._thought_view is not None else "") + waiting

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.answer, self.thought)

    @property
    def answer_view(self) -> MarkdownView:
        return self._answer_view

    def codes(self) -> list[Code]:
        return self.answer_view.codes()

    def links(self) -> list[Link]:
        return self.answer_view.links()

    def views(self) -> list[RowsView]:
        body = self._thought_view.body if self._thought_view is not None else None
        return [self._answer_view, *([body] if body is not None else [])]

    async def unfold(self, number: int) -> RowsView:
        if number == 0 or self._thought_view is None:
            return self._answer_view
        if not self._thought_view.unfolded:
            await self._thought_view.toggle()
        assert self._thought_view.body is not None
        return self._thought_view.body

    async def fold(self) -> None:
        if self._thought_view is not None:
            await self._thought_view.toggle()

    @property
    def ended(self) -> bool:
        return self._ending is not None

    def fresh(self) -> ReplyBlock:
        return ReplyBlock(
            self.answer,
            self.thought,
            self._ending,
            thought_closed=self._thought_closed,
            thinking_ms=self._thinking_ms,
            thinking_tokens=self._thinking_tokens,
            node=self.node,
            versions=self.versions,
        )

    def compose(self) -> ComposeResult:
        if self._thought_view is not None:
            yield self._thought_view
        self._answer_view.display = bool(self._parts)  # else it would take a line
        yield self._answer_view
        if self.versions[1] > 1 and self.node is not None:
            yield VersionLine(self.node, self.versions)

    async def resume(self, begun: ReplyBlock) -> None:
        """What there is of it already, before more of it comes."""
        if begun.thought:
            self.feed("thinking", begun.thought, begun._thinking_tokens or 0)
            self._thinking_since = self._clock() - (begun._thinking_ms or 0) / 1000
            if begun._thought_closed:
                self._thinking_until = self._clock()
        if begun.answer:
            self.feed("answer", begun.answer, 0)
        await self.draw()

    def on_mount(self) -> None:
        if self._ending is not None:
            self._show_ending()

    def prefill(self, done: int, total: int) -> None:
        """How far the reading of the prompt is, in tokens."""
        self._set_footer(f"reading {count(done)} of {count(total)} tokens…" if done < total else "")

    def feed(self, channel: Channel, text: str, tokens: int) -> None:
        """More text of the reply."""
        now = self._clock()
        if channel == "thinking":
            if self._thinking_since is None:
                self._thinking_since = now
                self._thinking_tokens = 0
            self._thinking_tokens = (self._thinking_tokens or 0) + tokens
        elif self._thinking_since is not None and self._thinking_until is None:
            self._thinking_until = now
        if channel == "answer":
            self._parts.append(text)
        self._pending.append((channel, text))
        if self._timer is None:
            self._timer = self.set_timer(max(FRAME - (now - self._drawn), 0.001), self.draw)

    async def was_thought(self) -> None:
        """All of the answer so far belongs to the thought."""
        await self.draw()
        text, self._parts = self.answer, []
        if (mounting := self._add_thought(text, live=False)) is not None:
            await mounting
        self._close_thought(unfinished=False)
        await self._answer_view.remove()
        self._answer_view = MarkdownView()
        self._answer_view.display = False
        await self.mount(self._answer_view, after=self._thought_view)

    async def draw(self) -> None:
        """Show what has come since the last time; two of these may overlap, and nothing then changes places."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._drawn = self._clock()
        pending, self._pending = self._pending, []
        thought = "".join(text for channel, text in pending if channel == "thinking")
        answer = "".join(text for channel, text in pending if channel == "answer")
        if pending:
            self._set_footer("")
        mounting = self._add_thought(thought, live=True) if thought else None
        self._measure_thought()
        if answer:
            self._close_thought(unfinished=False)
            self._answer_view.display = True
            self._answer_view.append(answer)
        if mounting is not None:
            await mounting
            self._measure_thought()

    def _add_thought(self, text: str, *, live: bool) -> AwaitMount | None:
        """Show more of the thought. It is there before the view is, for whoever asks meanwhile."""
        if self._thought_view is not None:
            self._thought_view.append(text)
            return None
        self._thought_view = ThoughtView()
        self._thought_view.append(text)
        if live:
            self._ticker = self.set_interval(1, self._measure_thought)
        return self.mount(self._thought_view, before=self._answer_view)

    async def finish(
        self,
        ending: Ending,
        *,
        thought_closed: bool = True,
        thinking_ms: float | None = None,
        thinking_tokens: int | None = None,
    ) -> None:
        """The reply has ended; the figures replace those measured here."""
        await self.draw()
        if self._thinking_since is not None:
            until = self._thinking_until if self._thinking_until is not None else self._clock()
            self._thinking_ms = 1000 * (until - self._thinking_since)
        self._thinking_ms = thinking_ms if thinking_ms is not None else self._thinking_ms
        self._thinking_tokens = thinking_tokens or self._thinking_tokens
        self._ending, self._thought_closed = ending, thought_closed
        self._answer_view.close()
        self._show_ending()

    @property
    def measured(self) -> dict[str, float]:
        """What is known of the thought of a reply that has ended, by the names of `Stats`."""
        found = {"thinking_ms": self._thinking_ms, "thinking_tokens": self._thinking_tokens}
        return {name: value for name, value in found.items() if value is not None}

    def _show_ending(self) -> None:
        assert self._ending is not None
        unfinished = not self._thought_closed
        self._close_thought(unfinished=unfinished)
        if self._thought_view is not None:
            seconds = self._thinking_ms / 1000 if self._thinking_ms is not None else None
            self._thought_view.measure(seconds, self._thinking_tokens)
        footer = _FOOTERS[self._ending]
        answered = bool(self.answer.strip())
        if unfinished and self._ending == "cancelled":
            footer = footer.rpartition(" · ")[2]  # the thought says that it was stopped
        if self._ending == "stop" and not answered:
            footer = EMPTY
        if self._ending == "failed" and not answered and self._thought_view is None:
            footer = ""  # why is told below, and there is nothing that could go on
        self._answer_view.display = answered
        self._set_footer(footer)

    def _close_thought(self, *, unfinished: bool) -> None:
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None
        if self._thought_view is not None:
            self._thought_view.finish(unfinished=unfinished)

    def _measure_thought(self) -> None:
        if self._thought_view is None or self._thinking_since is None or self._ending is not None:
            return
        until = self._thinking_until if self._thinking_until is not None else self._clock()
        self._thought_view.measure(until - self._thinking_since, self._thinking_tokens)

    def _set_footer(self, text: str) -> None:
        if text == self._footer_text:
            return
        self._footer_text = text
        if self._footer is None:
            self._footer = Static(text, classes="reply--footer", markup=False)
            self.mount(self._footer, after=self._answer_view)
        self._footer.set_class(self._thought_view is None and not self._parts, "-alone")
        self._footer.update(text)
        self._footer.display = bool(text)


class VersionLine(Static):
    """‹ 2/3 ›: a click on one half shows the version before, on the other the next."""

    ALLOW_SELECT = False

    def __init__(self, node: int, versions: Versions) -> None:
        super().__init__(_versions_label(versions), classes="reply--versions", markup=False)
        self._node = node

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(Block.Switched(self._node, _step_at(event.x)))


def _versions_label(versions: Versions) -> str:
    return f"‹ {versions[0]}/{versions[1]} ›" if versions[1] > 1 else ""


def _step_at(x: int) -> int:
    return -1 if x < 3 else 1
