"""What the processor can do, as far as the native functions care."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

Dot = Literal["avx512vnni", "avxvnni", "avx2", "neon", "plain"]


@dataclass(frozen=True)
class Target:
    """What code is made for: LLVM's names of triple, processor and features, and how bytes are multiplied.

    `dot` is the instruction for four products of bytes summed in 32 bits; "plain" needs none and runs anywhere.
    `ahead` is how many bytes before their use weights are asked for; 0 leaves it to the processor to foresee.
    `streams` is how many panels of weights a thread reads side by side, see `streams`.
    """

    triple: str
    cpu: str
    features: str
    dot: Dot
    ahead: int = 0
    streams: int = 1


# What a target has, best first, and the features it must have; narrowing the features gives every one its test.
_X86: tuple[tuple[Dot, frozenset[str]], ...] = (
    ("avx512vnni", frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "fma", "f16c"})),
    ("avxvnni", frozenset({"avxvnni", "avx2", "fma", "f16c"})),
    ("avx2", frozenset({"avx2", "fma", "f16c"})),
)


# Measured on one core, Q4_K and Q6_K from memory, GB/s: a Xeon 12.5 → 14.5 and 11.1 → 13.9, of 14.7 that it can read.
# With 2,304 bytes it does 14.1 and 14.5, with 9,216 14.7 and 14.2, but what lies ahead of a piece of the work another
# thread may read too. An EPYC with AVX512 lost a third on Q4_K. One with AVX2 alone (Zen 3) went from 8.4 and 6.6 to
# 11.8 and 7.9, with 16,384 bytes to 13.2 and 8.1, two of its cores from 14.1 and 14.8 to 18.2 and 17.5, and 19.2 and
# 18.4; which cache it is asked into changed nothing.
_AHEAD = 4608
_AHEAD_ZEN3 = 16384

NEON = Target("aarch64-unknown-linux-gnu", "generic", "+neon,+dotprod,+fullfp16", "neon")


@functools.cache
def host() -> Target:
    """The machine that this runs on. Raises ImportError where llvmlite is missing."""
    import llvmlite.binding as llvm

    triple = llvm.get_default_triple()
    flags = llvm.get_host_cpu_features()
    present = frozenset(name for name, on in flags.items() if on)
    cpu, dot = llvm.get_host_cpu_name(), _best_dot(triple, present)
    return Target(triple, cpu, flags.flatten(), dot, _ahead(triple, cpu, dot), 4 if _zen3(cpu, dot) else 1)


def _ahead(triple: str, cpu: str, dot: Dot) -> int:
    if not triple.startswith("x86_64"):
        return 0
    if cpu.startswith("znver"):
        return _AHEAD_ZEN3 if _zen3(cpu, dot) else 0
    return _AHEAD


def _zen3(cpu: str, dot: Dot) -> bool:
    return cpu.startswith("znver") and dot == "avx2"


def narrowed(dot: Dot) -> Target:
    """This machine with nothing better than `dot`. Raises ValueError if it has not got that."""
    import llvmlite.binding as llvm

    if dot == "neon":
        if host().dot != "neon":
            raise ValueError("this processor has no neon")
        return host()
    flags = llvm.get_host_cpu_features()
    present = {name for name, on in flags.items() if on}
    if "avx512vnni" in present and "avx512vl" in present:
        present.add("avxvnni")  # the same instructions in another encoding
    needed = dict(_X86).get(dot, frozenset())
    if not needed <= present:
        raise ValueError(f"this processor has no {dot}")
    if dot == "plain":
        return Target(llvm.get_default_triple(), "", "", dot)
    kept = needed | {"sse4.2", "popcnt", "bmi", "bmi2"}
    if dot == "avxvnni" and not flags.get("avxvnni"):
        kept = (kept - {"avxvnni"}) | {"avx512f", "avx512vl", "avx512vnni", "prefer-256-bit"}
    return Target(llvm.get_default_triple(), "x86-64", ",".join(f"+{name}" for name in sorted(kept)), dot)


def _best_dot(triple: str, present: frozenset[str]) -> Dot:
    if triple.startswith(("x86_64", "i686")):
        return next((dot for dot, needed in _X86 if needed <= present), "plain")
    if triple.startswith(("aarch64", "arm64")) and "dotprod" in present:
        return "neon"
    return "plain"
