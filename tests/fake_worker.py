"""A scripted engine that speaks the worker protocol as a real child process.

    python tests/fake_worker.py [SCRIPT]

SCRIPT is JSON, or the path of a JSON file:

    {"load": [STEP, …], "replies": [[STEP, …], …], "idle": [STEP, …], "cache": [STEP, …], "kept": [{…}, …],
     "model": {…}, "record": PATH}

`load` runs for each Load, before its Ready; the n-th Generate plays the n-th of `replies`, the last one repeats;
`idle` runs after each of them. `kept` are the states that CacheReport tells of, as fields of CachedState, CacheDrop
takes from them; `cache` runs for each CacheList and CacheDrop, before its CacheReport. `model` overrides fields of
ModelInfo. `record`: a file that receives every command line. A reply ends in Finished("stop") unless a step ended it.
A STEP is an object, played in this order of keys:

    {"when": text}        skip the step unless the command, as JSON, contains the text
    {"once": PATH}        skip the step if PATH exists, else create it: for what must not happen again after a restart
    {"delay": seconds}    wait; a Cancel or a Shutdown ends the wait, "deaf": true makes it go on
    {"progress": [d, t]}  LoadProgress in a load, PromptProgress in a reply ([d, t, cached])
    {"thinking": text}    a Delta of that channel; nothing when the request turns thinking off, or after AnswerNow
    {"answer": text}      a Delta of that channel; "tokens": how many it counts for (1); "repeat": how often (1);
                          "drafted": the spans of it that were drafted
    {"echo": true}        a Delta of the answer holding the command as JSON
    {"notice": text}      a Notice
    {"settled": tokens}   Settled, of the last Generate's conversation
    {"fail": text}        Failed, "kind": one of protocol.Failure, "detail": text; "kept": true, the
                          old model is still open; ends the reply or the load
    {"finish": reason}    Finished, "thought_closed", "stats": fields of Stats; ends the reply
    {"stdout": text}      raw text on the protocol's pipe
    {"stderr": text}      raw text on stderr
    {"exit": code}        end the process at once
    {"signal": number}    end it by a signal
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime import protocol
from runtime.protocol import (
    AnswerNow,
    CacheDrop,
    CachedState,
    CacheList,
    CacheReport,
    Cancel,
    Command,
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
    LoadProgress,
    ModelInfo,
    Notice,
    PromptProgress,
    Ready,
    Sampling,
    Settled,
    Shutdown,
    Stats,
)

Step = dict[str, Any]

DEFAULT: dict[str, Any] = {
    "load": [{"progress": [50, 100]}, {"progress": [100, 100]}],
    "replies": [
        [
            {"progress": [8, 8, 0]},
            {"thinking": "The user says hello. "},
            {"answer": "Hello"},
            {"answer": " from the "},
            {"answer": "fake worker."},
        ]
    ],
}


class FakeWorker:
    def __init__(self, script: dict[str, Any]) -> None:
        self.script = DEFAULT | script
        self.commands: queue.Queue[Command] = queue.Queue()
        self.cancelled: set[str] = set()
        self.to_answer: set[str] = set()
        self.changed = threading.Condition()
        self.replies = 0
        self.kept = [CachedState(**fields) for fields in self.script.get("kept", [])]
        self.model: ModelInfo | None = None
        self.before: ModelInfo | None = None  # the one that was open

    def read(self) -> None:
        """The reader thread: cancels at once, the rest in turn; the end of stdin ends the process."""
        for line in sys.stdin.buffer:
            if path := self.script.get("record"):
                with Path(path).open("ab") as file:
                    file.write(line)
            command = protocol.decode_command(line)
            with self.changed:
                if isinstance(command, Cancel):
                    self.cancelled.add(command.request_id)
                elif isinstance(command, AnswerNow):
                    self.to_answer.add(command.request_id)
                elif isinstance(command, Shutdown):
                    os._exit(0)
                else:
                    self.commands.put(command)
                self.changed.notify_all()
        os._exit(0)

    def run(self) -> None:
        while True:
            command = self.commands.get()
            if isinstance(command, Load):
                self.load(command)
            elif isinstance(command, Generate):
                self.generate(command)
                self.play(self.script.get("idle", []), command)
            elif isinstance(command, CacheList | CacheDrop):
                self.report(command)

    def load(self, command: Load) -> None:
        self.before, self.model = self.model, None  # as the real one, which needs its memory
        if self.play(self.script["load"], command):
            return
        fields: dict[str, Any] = {
            "path": command.path,
            "name": Path(command.path).stem,
            "architecture": "qwen35",
            "parameters": 4_000_000,
            "file_bytes": 8_000_000,
            "context_length": command.context_length or 4096,
            "trained_context": 262_144,
            "thinking_default": True,
            "has_mtp": True,
            "ops": "reference" if command.ops == "auto" else command.ops,
            "presets": {"thinking": Sampling(temperature=1.0), "non-thinking": Sampling(temperature=0.7)},
        }
        self.model = ModelInfo(**fields | self.script.get("model", {}))
        emit(Ready(self.model))

    def generate(self, command: Generate) -> None:
        if self.model is None:
            emit(Failed("No model is loaded.", "load", request_id=command.request_id))
            return
        replies = self.script["replies"]
        steps = replies[min(self.replies, len(replies) - 1)]
        self.replies += 1
        Reply(self, command).play(steps)

    def report(self, command: CacheList | CacheDrop) -> None:
        if self.play(self.script.get("cache", []), command):
            return
        if isinstance(command, CacheDrop):
            key = command.conversation_id
            self.kept = [state for state in self.kept if key not in (None, state.conversation_id)]
        memory, disk = sum(state.bytes for state in self.kept), sum(state.on_disk_bytes for state in self.kept)
        emit(CacheReport(tuple(self.kept), memory, 1000, disk, 2000))

    def play(self, steps: list[Step], command: Command, reply: Reply | None = None) -> bool:
        """Whether a step, or a Cancel, has ended it."""
        for step in steps:
            if step.get("when", "") not in protocol.encode(command).decode():
                continue
            if "once" in step and not create(Path(step["once"])):
                continue
            for _ in range(step.get("repeat", 1)):
                self.wait(step, reply)
                if reply is not None and reply.cancelled() and not step.get("deaf"):
                    reply.finish("cancelled")
                    return True
                if (reply.step(step) if reply else self.load_step(step)) or self.common_step(step, command, reply):
                    return True
        return False

    def wait(self, step: Step, reply: Reply | None) -> None:
        seconds = step.get("delay", 0)
        if step.get("deaf") or reply is None:
            time.sleep(seconds)
            return
        with self.changed:
            self.changed.wait_for(lambda: reply.cancelled() or ("thinking" in step and reply.hurried()), seconds)

    def load_step(self, step: Step) -> bool:
        if "progress" in step:
            done, total = step["progress"]
            emit(LoadProgress(done, total, "weights"))
        return False

    def common_step(self, step: Step, command: Command, reply: Reply | None) -> bool:
        if "notice" in step:
            emit(Notice(step["notice"]))
        if "settled" in step and isinstance(command, Generate):
            emit(Settled(command.conversation_id, step["settled"]))
        if "stdout" in step:
            write(step["stdout"].encode())
        if "stderr" in step:
            os.write(2, step["stderr"].encode())
        if "exit" in step:
            os._exit(step["exit"])
        if "signal" in step:
            os.kill(os.getpid(), step["signal"])
            time.sleep(60)
        if "fail" in step:
            key = reply.command.request_id if reply else None
            if step.get("kept"):
                self.model = self.before
            emit(
                Failed(step["fail"], step.get("kind", "internal"), step.get("detail", ""), key, step.get("kept", False))
            )
            return True
        return False


class Reply:
    """One Generate and what was said of it."""

    def __init__(self, worker: FakeWorker, command: Generate) -> None:
        self.worker = worker
        self.command = command
        self.tokens = 0
        self.thinking_tokens = 0
        model = worker.model
        assert model is not None
        self.thinks = model.thinking_default if command.thinking is None else command.thinking
        self.thought_closed = not self.thinks
        self.context_length = model.context_length

    def cancelled(self) -> bool:
        return self.command.request_id in self.worker.cancelled

    def hurried(self) -> bool:
        return self.command.request_id in self.worker.to_answer

    def play(self, steps: list[Step]) -> None:
        if not self.worker.play(steps, self.command, self):
            self.finish("stop")

    def step(self, step: Step) -> bool:
        if "progress" in step:
            emit(PromptProgress(self.command.request_id, *step["progress"]))
        if "thinking" in step and self.thinks and not self.hurried():
            self.say("thinking", step["thinking"], step.get("tokens", 1), step.get("drafted", ()))
        if "answer" in step:
            self.say("answer", step["answer"], step.get("tokens", 1), step.get("drafted", ()))
        if "echo" in step:
            self.say("answer", protocol.encode(self.command).decode(), 1)
        if "finish" in step:
            self.finish(step["finish"], step.get("thought_closed"), step.get("stats"))
            return True
        return False

    def say(self, channel: protocol.Channel, text: str, tokens: int, drafted: Sequence[Sequence[int]] = ()) -> None:
        self.tokens += tokens
        self.thinking_tokens += tokens * (channel == "thinking")
        self.thought_closed = channel == "answer"
        spans = tuple((start, end) for start, end in drafted)
        emit(Delta(self.command.request_id, channel, text, tokens, spans))

    def finish(
        self, reason: protocol.FinishReason, closed: bool | None = None, stats: dict[str, Any] | None = None
    ) -> None:
        prompt = sum(len(message.content.split()) for message in self.command.messages)
        figures: dict[str, Any] = {
            "prompt_tokens": prompt,
            "prefilled_tokens": prompt,
            "generated_tokens": self.tokens,
            "thinking_tokens": self.thinking_tokens,
            "ttft_ms": 12.5,
            "decode_tok_per_s": 100.0,
            "context_used": prompt + self.tokens,
            "context_length": self.context_length,
        }
        closed = self.thought_closed if closed is None else closed
        emit(Finished(self.command.request_id, reason, Stats(**figures | (stats or {})), closed))


def create(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def emit(event: Event) -> None:
    write(protocol.encode(event))


def script(argument: str) -> dict[str, Any]:
    return dict(json.loads(argument if argument.lstrip().startswith("{") else Path(argument).read_text("utf-8")))


if __name__ == "__main__":
    worker = FakeWorker(script(sys.argv[1]) if len(sys.argv) > 1 else {})
    threading.Thread(target=worker.read, daemon=True).start()
    worker.run()
