"""Both engines in turn on the same file with the same threads; not part of the tests.

    python tests/bench_peer.py MODEL.gguf --peer PYTHON [--threads N] [--rounds N] [--context N ...] [--prefill N]
                               [--kept FOLDER] [--repacked]

PYTHON is an interpreter that has llama-cpp-python. `--prefill 0` leaves prefill out, `--context 0` decoding. What the
peer has read of a long context is kept in FOLDER, so that it need not be read again in each round (the own engine takes
random keys and values); `--rounds 0` does no more than fill the folder.

`--repacked` leaves the peer its extra buffers, weights that it repacks for the processor: its best where they work, but
with AMX it crashes on some shapes.

Every round runs each engine in a process of its own; the ratios are of medians over the rounds, of wall-clock speed and
of processor time, which other programs disturb less (with several threads it counts those that wait). `peak_mb` is the
most memory that a process had resident, what it maps of the file included, for both; some 150 MB of the own is Python
with torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

PEER = """
import json, os, resource, statistics, sys, time
import llama_cpp
path, threads, prefill, repeats, tokens, contexts, folder, repacked = json.loads(sys.argv[1])
defaults = llama_cpp.llama_model_default_params
def plain():
    params = defaults()
    params.use_extra_bufts = repacked
    return params
llama_cpp.llama_cpp.llama_model_default_params = plain
started = time.perf_counter()
room = max([*contexts, prefill]) + 2 * tokens + 64
model = llama_cpp.Llama(path, n_threads=threads, n_threads_batch=threads, n_ctx=room, n_batch=512, n_ubatch=512,
                        verbose=False)
model.eval([9])
load = time.perf_counter() - started
rates, used = [], []
for _ in range(repeats if prefill else 0):
    model.reset()
    started, cpu = time.perf_counter(), time.process_time()
    model.eval([9] * prefill)
    rates.append(prefill / (time.perf_counter() - started))
    used.append(1e3 * (time.process_time() - cpu) / prefill)
decode = []
for context in contexts:
    model.reset()
    kept = os.path.join(folder, f"{os.path.basename(path)}-{context}.state").encode() if folder else b""
    ids = (llama_cpp.llama_token * room)(*([9] * context))
    if kept and os.path.exists(kept):
        count = llama_cpp.ctypes.c_size_t()
        assert llama_cpp.llama_state_load_file(model.ctx, kept, ids, room, llama_cpp.ctypes.byref(count))
        model.input_ids[:context], model.n_tokens = 9, context
    else:
        model.eval([9] * context)
        if kept:
            assert llama_cpp.llama_state_save_file(model.ctx, kept, ids, context)
    walls, cpus = [], []
    for _ in range(tokens + 2):
        wall, cpu = time.perf_counter(), time.process_time()
        model.eval([9])
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    decode.append({"context": context, "tok_per_s": 1 / statistics.median(walls[2:]),
                   "cpu_ms": 1e3 * statistics.median(cpus[2:])})
print(json.dumps({"load_s": load, "prefill_tok_per_s": statistics.median(rates or [0]),
                  "prefill_cpu_ms": statistics.median(used or [0]), "decode": decode,
                  "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def run(command: list[str]) -> dict[str, object]:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(report: dict[str, object]) -> dict[str, float]:
    """Every figure by name."""
    names = ("load_s", "prefill_tok_per_s", "prefill_cpu_ms", "peak_mb")
    found = {name: float(report[name]) for name in names}  # type: ignore[arg-type]
    for decode in report["decode"]:  # type: ignore[attr-defined]
        for name in ("tok_per_s", "cpu_ms"):
            found[f"decode {decode['context']} {name}"] = decode[name]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3, help="of prefill in each round")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--context", type=int, nargs="+", default=[128, 4096])
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--repacked", action="store_true")
    options = parser.parse_args()
    contexts = [context for context in options.context if context]
    peers = [options.prefill, options.repeats, options.tokens, contexts, str(options.kept or ""), options.repacked]
    words = json.dumps([str(options.model), options.threads, *peers])
    if not options.rounds:
        run([options.peer, "-c", PEER, words])
        return
    own = [
        *(sys.executable, "-m", "runtime.bench", "speed", str(options.model), "--json"),
        *("--threads", str(options.threads), "--prefill", str(options.prefill), "--tokens", str(options.tokens)),
        *("--repeats", str(options.repeats), "--at", *map(str, contexts)),
    ]
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(figures(run(own)))
        theirs.append(figures(run([options.peer, "-c", PEER, words])))
        for name in ours[-1]:
            print(f"round {len(ours)}: {name} {ours[-1][name]:.2f}, llama.cpp {theirs[-1][name]:.2f}", flush=True)
    for name in ours[0]:
        a, b = (statistics.median(report[name] for report in reports) for reports in (ours, theirs))
        if not b:
            continue
        better = a / b if name.endswith("per_s") else b / a
        print(f"{name:28} {a:10.2f}   llama.cpp {b:10.2f}   {better:.2f} times as good")


if __name__ == "__main__":
    main()
