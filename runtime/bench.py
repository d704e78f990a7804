"""Benchmarks of the runtime: `python -m runtime.bench [NAME] [MODEL] [--json]`; `speed` goes without its name."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from runtime import bench_draft, bench_memory, bench_resume, lean_torch
from runtime.bench_worker import WorkerError
from runtime.command_line import Parser, whole
from runtime.cores import physical_cores
from runtime.errors import UserError
from runtime.protocol import BUILT_IN_MODEL, KvType, Load

if TYPE_CHECKING:
    from kernels.op import Column
    from runtime import bench_speed

_KV_TYPES = get_args(KvType)
_MODES = {"off": (False,), "on": (True,), "both": (False, True)}

_RESUME = f"""
Reads a history and lets it settle, then asks for the next turn, a new answer, a fork and edits of several messages: in
the same session, after quitting and starting again, and after a kill. Each may prefill no more than an empty chat does
for the same words, its first token may come {bench_resume.MOST_MS:.0f} ms later than there, prefill not counted, and
a state of {bench_resume.MEASURABLE / 1e6:.0f} MB or more must be read from disk in {bench_resume.MOST_MS_PER_GB:.0f} ms
per GB. The exit status is 1 if something falls short, which is marked with an exclamation mark.
"""
_RESUME_NOTE = """
The history is read once for each way of thinking and of preserving thoughts. Where that takes long, ask for one at a
time, and leave the machine alone meanwhile.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if the figures are what they should be, 1 if not, 2 if there are none."""
    told = "Benchmarks of the runtime. Without a name: how fast MODEL is, the built-in one if none is named. "
    told += "`qwenchat bench ui` measures the screen."
    parser = Parser(prog="qwenchat bench", description=told)
    benchmarks = parser.add_subparsers(required=True, metavar="NAME")
    resume = benchmarks.add_parser(
        "resume", help="what a turn of a long conversation reads again", description=_RESUME, epilog=_RESUME_NOTE
    )
    resume.add_argument("--tokens", type=whole(1), default=8000, help="of history (default: %(default)s)")
    for name, what in (("thinking", "thoughts"), ("preserve-thinking", "thoughts that stay in the history")):
        resume.add_argument(f"--{name}", choices=list(_MODES), default="both", help=f"with {what} (default: both)")
    resume.add_argument("--context", type=whole(1), help="tokens (default: as the model has, or as are needed)")
    resume.add_argument("--kv-type", choices=_KV_TYPES, default="auto", help="type of keys and values")
    drafts = benchmarks.add_parser("draft", help="what drafting brings")
    drafts.add_argument("--rounds", type=whole(1), default=5, help="(default: %(default)s)")
    drafts.add_argument("--max-tokens", type=whole(1), default=128, help="of each reply (default: %(default)s)")
    drafts.add_argument("--thinking", action="store_true", help="with thoughts")
    told = "in place of the prompts, every N-th held-out dialogue of the built-in model, every second one with thoughts"
    drafts.add_argument("--held-out", type=whole(1), metavar="N", help=told)
    drafts.add_argument("--threads", type=whole(1), help="of the model")
    drafts.add_argument("--draft-vocabulary", type=whole(1), help="tokens that drafts come from (default: all)")
    memory = benchmarks.add_parser("memory", help="what a model takes with its context full, and what was foretold")
    memory.add_argument("--context", type=whole(1), help="tokens (default: 32768)")
    memory.add_argument("--kv-type", choices=_KV_TYPES, default="auto", help="type of keys and values")
    speed = benchmarks.add_parser("speed", help="how fast a model loads, reads and writes")
    speed.add_argument("--prefill", type=whole(0), default=512, help="tokens; 0: do not measure (default: %(default)s)")
    speed.add_argument("--repeats", type=whole(1), default=3, help="of prefill (default: %(default)s)")
    speed.add_argument("--at", type=whole(0), nargs="*", default=[128, 4096], help="tokens before (default: 128 4096)")
    speed.add_argument("--tokens", type=whole(1), default=32, help="to take the median of (default: %(default)s)")
    speed.add_argument("--threads", type=whole(1), help="of the model")
    for benchmark in (resume, drafts, memory, speed):
        count = "?" if benchmark is speed else None
        told = "a GGUF file, or built-in"
        benchmark.add_argument("model", metavar="MODEL", type=_model, nargs=count, default="built-in", help=told)
        benchmark.add_argument("--ops", choices=["auto", "reference", "cpu", "triton"], default="auto")
        benchmark.add_argument("--json", action="store_true", help="one JSON object on stdout")
    resume.set_defaults(measure=_resume)
    drafts.set_defaults(measure=_draft)
    memory.set_defaults(measure=_memory)
    speed.set_defaults(measure=_speed)
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in (*benchmarks.choices, "-h", "--help"):
        if words and not words[0].startswith("-") and words[0] != "built-in" and not Path(words[0]).exists():
            parser.error(
                f"there is no benchmark and no file {words[0]!r}; benchmarks are {', '.join(benchmarks.choices)}"
            )
        words.insert(0, "speed")
    found = parser.parse_args(words)
    if found.measure is _draft and found.thinking and found.held_out is not None:
        drafts.error("--thinking is for the prompts; every second held-out dialogue has thoughts")
    try:
        report = found.measure(found)
    except (WorkerError, UserError) as error:
        print(f"qwenchat: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.as_dict()) if found.json else report.as_text())
    return 0 if report.good else 1


def _model(word: str) -> str:
    return str(BUILT_IN_MODEL) if word == "built-in" and not Path(word).exists() else word


def _resume(found: argparse.Namespace) -> bench_resume.Report:
    load = Load(found.model, found.context, found.ops, kv_type=found.kv_type)
    return bench_resume.measure(
        load,
        found.tokens,
        thinking=_MODES[found.thinking],
        preserve_thinking=_MODES[found.preserve_thinking],
    )


def _draft(found: argparse.Namespace) -> bench_draft.Report:
    load = Load(found.model, ops=found.ops, threads=found.threads, draft_vocabulary=found.draft_vocabulary)
    conversations = [bench_draft.Conversation(bench_draft.PROMPTS, found.thinking)]
    if found.held_out is not None:
        conversations = [*bench_draft.held_out(found.held_out)]
    return bench_draft.measure(found.rounds, found.max_tokens, conversations, load)


def _memory(found: argparse.Namespace) -> bench_memory.Report:
    return bench_memory.measure(Load(found.model, found.context, found.ops, kv_type=found.kv_type))


def _speed(found: argparse.Namespace) -> bench_speed.Report:
    if found.ops != "triton":
        lean_torch.load()
    from runtime import bench_speed  # in this process, so torch is loaded

    ops: Column = "cpu" if found.ops == "auto" else found.ops
    threads = found.threads or physical_cores()
    return bench_speed.measure(Path(found.model), found.at, found.prefill, found.tokens, threads, ops, found.repeats)


if __name__ == "__main__":
    sys.exit(main())
