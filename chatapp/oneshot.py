"""One question and its answer on stdout, without the screen: `qwenchat -p "…"` and pipes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import uuid
from collections.abc import Mapping
from typing import Any, TextIO

from chatapp import sanitize
from chatapp.backend import Backend
from chatapp.branch import Turn
from chatapp.choices import Choices
from chatapp.figures import plural
from chatapp.options import ChatOptions
from chatapp.remote.address import is_address
from chatapp.session import Session
from chatapp.store import Status, Store, StoreError
from runtime.protocol import (
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    LoadProgress,
    Message,
    Notice,
    PromptProgress,
    Stats,
    WasThought,
)

FIGURES = (
    "prompt_tokens",
    "cached_tokens",
    "prefilled_tokens",
    "generated_tokens",
    "drafted",
    "accepted",
    "ttft_ms",
    "decode_tok_per_s",
)
_SAVE_SECONDS = 1.0


class AnswerError(Exception):
    """No answer came; the message is a sentence for the user."""


class Output:
    """stdout gets the answer or the one JSON object, stderr everything else."""

    def __init__(self, out: TextIO, err: TextIO, *, as_json: bool) -> None:
        self._out = out
        self._err = err
        self._json = as_json
        self._harmless = out.isatty()
        self._at_line_start = True
        self._status_shown = False

    def answer(self, text: str) -> None:
        """More of it. Raises BrokenPipeError when nobody reads any more, AnswerError if it cannot be written."""
        if not text or self._json:
            return
        self.status("")
        self._write(sanitize.clean(text) if self._harmless else text)
        self._at_line_start = text.endswith("\n")

    def end_answer(self) -> None:
        if not self._at_line_start:
            self.answer("\n")

    def result(self, result: Mapping[str, Any]) -> None:
        """ASCII, so that no encoding and no terminal can stumble over it. Raises as `answer` does."""
        if self._json:
            self.status("")
            self._write(json.dumps(result, indent=2) + "\n")

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise AnswerError(f"The answer cannot be written: {error.strerror}.") from error

    def notice(self, sentence: str) -> None:
        """A sentence that nobody can be shown does not cost the answer."""
        self.status("")
        with contextlib.suppress(OSError):
            print(f"qwenchat: {sanitize.clean(sentence)}", file=self._err, flush=True)

    def status(self, text: str) -> None:
        """What is going on, on a line that vanishes; only where somebody watches."""
        if self._err.isatty() and (text or self._status_shown):
            self._err.write(f"\r\x1b[K{sanitize.clean_line(text, 60)}")
            self._err.flush()
            self._status_shown = bool(text)


class OneShot:
    """Loads the model, asks, prints, and keeps what came if there is a conversation to keep it in."""

    def __init__(
        self, backend: Backend, options: ChatOptions, output: Output, store: Store | None = None, name: str = ""
    ) -> None:
        """With a store, the conversation is the one of the options, else that of the name, which is made if needed."""
        self._backend = backend
        self._options = options
        self._output = output
        self._store = store
        self._name = name
        self._session = Session(store, options.system) if store else None
        self._request_id = uuid.uuid4().hex
        self._texts = {"answer": "", "thinking": ""}
        self._tokens = 0
        self._ended: Finished | Failed | None = None
        self._generating = False
        self._signal = 0

    async def run(self, prompt: str) -> int:
        """The exit code: 0; 1 without an answer; 128 + n after signal n."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(self._run(prompt))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop, number, task)
        try:
            await task
        except asyncio.CancelledError:
            if not self._signal:
                raise
        except (AnswerError, StoreError) as error:
            self._output.notice(str(error))
            with contextlib.suppress(AnswerError):  # told already
                self._output.result({"error": str(error)})
            return 1
        except BrokenPipeError:
            return 128 + signal.SIGPIPE
        finally:
            self._output.status("")
            await self._backend.close()
        if self._signal:
            return 128 + self._signal
        return 0 if self._texts["answer"].strip() else 1

    def _stop(self, number: int, task: asyncio.Task[None]) -> None:
        """The first signal lets the engine end the reply, the second does not wait for it."""
        if self._signal or not self._generating:
            task.cancel()
        else:
            self._cancelling = asyncio.ensure_future(self._backend.cancel(self._request_id))
        self._signal = number

    async def _run(self, prompt: str) -> None:
        await self._load()
        messages, turn = await self._ask(prompt)
        try:
            await self._reply(messages, turn)
        finally:
            await self._keep(turn)
        assert isinstance(self._ended, Finished)
        self._output.end_answer()
        if remark := _remark(self._ended, self._texts["answer"]):
            self._output.notice(remark)
        self._output.result(self._result(self._ended))

    async def _load(self) -> None:
        assert self._options.model is not None
        self._output.status("connecting" if is_address(self._options.model) else "loading the model")
        async for event in self._backend.load(self._options.load(self._options.model)):
            self._handle(event)

    async def _ask(self, prompt: str) -> tuple[tuple[Message, ...], Turn | None]:
        """What the model is sent; the prompt is on the disk before that."""
        if self._session is None or self._store is None:
            system = (Message("system", self._options.system),) if self._options.system else ()
            return (*system, Message("user", prompt)), None
        model = self._backend.model.name if self._backend.model else ""
        if self._options.conversation_id:
            await self._session.open(self._options.conversation_id)
        elif self._name:
            await self._session.open(self._store.named(self._name, model).id)
        if self._options.system_override is not None:
            self._session.system = self._options.system_override
        turn = await self._session.ask(prompt, model, waits=self._waits)
        assert turn is not None
        if new := len(turn.news.nodes):
            self._output.notice(f"Another qwenchat has added {plural(new, 'message')} to this conversation.")
        return turn.messages, turn

    def _waits(self) -> None:
        self._output.notice("Another qwenchat is answering in this conversation: waiting for its reply.")

    async def _reply(self, messages: tuple[Message, ...], turn: Turn | None) -> None:
        choices = Choices(self._options)
        if self._session is not None:
            own = self._session.own.items()
            choices.take({name: value for name, value in own if name not in self._options.given})
        command = Generate(
            request_id=self._request_id,
            conversation_id=turn.conversation_id if turn else self._request_id,
            messages=messages,
            sampling=choices.sampling,
            thinking=choices.thinking,
            thinking_budget=choices.thinking_budget,
            preserve_thinking=choices.preserve_thinking,
            drafts=choices.drafts,
        )
        saving = asyncio.ensure_future(self._save(turn))
        self._generating = True
        try:
            async for event in self._backend.generate(command):
                self._handle(event)
        finally:
            saving.cancel()

    def _handle(self, event: Event) -> None:
        match event:
            case LoadProgress() if event.total:
                self._output.status(f"loading the model {100 * event.done // event.total} %")
            case PromptProgress():
                self._output.status(f"reading the prompt {event.done:,} / {event.total:,}")
            case Delta():
                self._tokens += event.n_tokens
                self._texts[event.channel] += event.text
                if event.channel == "answer":
                    self._output.answer(event.text)
                else:
                    self._output.status(f"thinking {plural(self._tokens, 'token')}")
            case WasThought():
                self._texts = {"answer": "", "thinking": self._texts["thinking"] + self._texts["answer"]}
            case Notice():
                self._output.notice(event.message)
            case Finished():
                self._ended = event
            case Failed():
                self._ended = event
                self._output.end_answer()
                raise AnswerError(event.message)
            case _:
                pass

    async def _save(self, turn: Turn | None) -> None:
        """The reply so far, every second; what there is no room for, as soon as there is."""
        saved = (0, 0)
        told = False
        while self._session is not None and turn is not None:
            await asyncio.sleep(_SAVE_SECONDS)
            answer, thought = self._texts["answer"], self._texts["thinking"]
            now = (len(answer), len(thought))
            if saved != now:
                try:
                    await self._session.save(turn, answer, thought)
                    saved = now
                except StoreError as error:
                    if not told:
                        self._output.notice(f"{error} The reply goes on, unsaved for now.")
                    told = True

    async def _keep(self, turn: Turn | None) -> None:
        if self._session is None or turn is None:
            return
        status: Status = "cancelled"
        closed = bool(self._texts["answer"]) or not self._texts["thinking"]
        meta: dict[str, Any] = {}
        if isinstance(self._ended, Failed):
            status, meta = "failed", {"reason": "failed", "failure": self._ended.kind}
        elif self._ended is not None:
            status = "cancelled" if self._ended.reason == "cancelled" else "complete"
            closed = self._ended.thought_closed
            meta = {"reason": self._ended.reason, "stats": self._ended.stats.told()}
        if self._backend.model is not None:
            meta |= {"model": self._backend.model.name, "source": self._backend.model.path}
        await self._session.finish(turn, self._texts["answer"], self._texts["thinking"], status, closed, meta)

    def _result(self, finished: Finished) -> dict[str, Any]:
        conversation = self._session.conversation if self._session else None
        return {
            "reply": self._texts["answer"],
            "thought": self._texts["thinking"],
            "finish_reason": finished.reason,
            "model": self._backend.model.name if self._backend.model else None,
            "conversation": (conversation.name or conversation.id) if conversation else None,
            "stats": _figures(finished.stats),
        }


def _figures(stats: Stats) -> dict[str, int | float | None]:
    """Without digits that mean nothing: milliseconds to a tenth, tokens per second to a hundredth."""
    told = stats.told()
    digits = {"ttft_ms": 1, "decode_tok_per_s": 2}
    return {
        name: round(told[name], digits[name]) if name in digits and told[name] is not None else told[name]
        for name in FIGURES
    }


def _remark(finished: Finished, answer: str) -> str:
    """What the answer itself does not show."""
    if finished.reason == "cancelled":
        return "Stopped."
    if not finished.thought_closed:
        limit = finished.reason == "length"
        return f"There is no answer: the {'limit of tokens was reached' if limit else 'model stopped'} in its thought."
    if not answer.strip():
        return "The model ended its reply at once: there is no answer."
    return "The answer is cut: it reached the limit of tokens." if finished.reason == "length" else ""
