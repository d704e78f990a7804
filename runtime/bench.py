"""Benchmarks of the runtime: `python -m runtime.bench NAME [MODEL] [--json]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from runtime import bench_resume
from runtime.bench_worker import WorkerError


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if the figures are what they should be, 1 if not, 2 if there are none."""
    parser = argparse.ArgumentParser(prog="runtime.bench", description="Benchmarks of the runtime.")
    benchmarks = parser.add_subparsers(required=True, metavar="NAME")
    resume = benchmarks.add_parser("resume", help="what a turn of a long conversation reads again")
    resume.add_argument("model", metavar="MODEL", help="a GGUF file")
    resume.add_argument("--tokens", type=int, default=8000, help="of history (default: %(default)s)")
    resume.add_argument("--quick", action="store_true", help="only without thinking")
    resume.add_argument("--kv-type", choices=["auto", "q8"], default="auto", help="type of keys and values")
    resume.add_argument("--ops", choices=["auto", "reference", "cpu", "triton"], default="auto")
    resume.add_argument("--json", action="store_true", help="one JSON object on stdout")
    found = parser.parse_args(argv)
    try:
        report = bench_resume.measure(
            found.model, found.tokens, quick=found.quick, ops=found.ops, kv_type=found.kv_type
        )
    except WorkerError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(report.as_dict()) if found.json else report.as_text())
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
