"""What is kept of conversations so that a turn need not read them again: asked of the backend, told as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping

from chatapp.backend import Backend
from chatapp.commands import CommandError
from chatapp.figures import count, plural, size
from chatapp.records import title_of
from chatapp.sanitize import clean_line
from chatapp.session import Session
from runtime.protocol import CachedState, CacheReport, Failed

ROWS = 30
_TITLE = 40  # characters
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
_HEAD = "| Conversation | Tokens | Checkpoints | In memory | On disk |\n|:--|--:|--:|--:|--:|"
_SHARED = (
    "What two share is counted in both. `/cache drop` forgets what is kept of this conversation, and `/cache drop all` "
    "what is kept of any. What was said stays."
)


class Cache:
    """Methods raise CommandError and StoreError; while a reply runs they take as long as it does."""

    def __init__(self, backend: Backend, session: Session) -> None:
        self._backend = backend
        self._session = session

    async def page(self) -> str:
        """A page of Markdown with each conversation, the last used first."""
        report = _known(await self._backend.cache())
        titles = {each.id: title_of(each) for each in await self._session.conversations()}
        return page(report, titles, self._current())

    async def drop(self, *, everything: bool) -> str:
        """Forget what is kept of this conversation, or of all. Returns what is kept now, in one sentence."""
        current = self._current()
        if current is None and not everything:
            raise CommandError("This conversation is new: nothing is kept of it yet.")
        report = _known(await self._backend.drop_cache(None if everything else current))
        return f"Dropped. {_totals(report)}"

    def _current(self) -> str | None:
        return self._session.conversation.id if self._session.conversation is not None else None


def page(report: CacheReport, titles: Mapping[str, str], current: str | None) -> str:
    """`titles` by conversation id; `current`: the id of the conversation on the screen."""
    if not report.states:
        return f"Nothing is kept of conversations yet. {_totals(report)}"
    rows = [_row(state, titles, current) for state in report.states[:ROWS]]
    if len(report.states) > ROWS:
        rows.append(f"| … {plural(len(report.states) - ROWS, 'more conversation')} | | | | |")
    return "\n".join([_HEAD, *rows, "", _totals(report), "", _SHARED])


def _known(answer: CacheReport | Failed | None) -> CacheReport:
    if answer is None:
        raise CommandError("What is kept of conversations is known to the server alone.")
    if isinstance(answer, Failed):
        raise CommandError(answer.message)
    return answer


def _totals(report: CacheReport) -> str:
    """What is kept, against the budgets."""
    if not report.memory_budget:
        return "No model of this machine is open, so nothing is in memory."
    memory = f"In memory {size(report.memory_bytes)} of {size(report.memory_budget)}"
    if not report.disk_budget:
        return f"{memory}; nothing is kept on disk."
    return f"{memory}, on disk {size(report.disk_bytes)} of {size(report.disk_budget)}."


def _as_text(title: str) -> str:
    """Markdown of a title; its marks as entities, since a backslash before a bracket begins mathematics."""
    return _PUNCTUATION.sub(lambda mark: f"&#{ord(mark[0])};", title)


def _row(state: CachedState, titles: Mapping[str, str], current: str | None) -> str:
    name = _as_text(clean_line(titles.get(state.conversation_id, state.conversation_id), _TITLE))
    cells = (
        f"**{name}**" if state.conversation_id == current else name,
        count(state.tokens),
        count(state.checkpoints),
        size(state.bytes) if state.in_memory else "–",
        size(state.on_disk_bytes) if state.on_disk_bytes else "–",
    )
    return f"| {' | '.join(cells)} |"
