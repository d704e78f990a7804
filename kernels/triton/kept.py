"""What compiling for cards told, in a file: a line for each program and card, good as long as its sources stay."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Compiled:
    """`registers` of a thread, `spills` in bytes of a thread, `shared` memory in bytes of a block."""

    registers: int
    spills: int
    shared: int


@functools.cache
def sources(function: Any) -> str:
    """Of a kernel and of all that it calls, and the constants that they name, but for Triton's own."""
    found: dict[str, str] = {}

    def read(function: Any) -> None:
        python = function.fn
        if f"{python.__module__}.{python.__name__}" in found:
            return
        text = textwrap.dedent(inspect.getsource(python))
        found[f"{python.__module__}.{python.__name__}"] = text
        names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        for name in names & python.__globals__.keys():
            value = python.__globals__[name]
            if hasattr(value, "fn"):
                if not value.fn.__module__.startswith("triton."):
                    read(value)
            elif hasattr(value, "value"):
                found[f"{python.__module__}.{name}"] = repr(value.value)
            elif isinstance(value, int | float | str | tuple | dict):
                found[f"{python.__module__}.{name}"] = repr(value)

    read(function)
    return "\n".join(f"{name}: {found[name]}" for name in sorted(found))


def key(*told: object) -> str:
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


class Kept:
    """Of another Triton, results are known, but not taken for those of this one.

    Several processes may write to a file at once.
    """

    def __init__(self, path: Path | None, triton: str) -> None:
        self._path, self._triton = path, triton
        self._lines: dict[tuple[str, str], str] = {}
        if path and path.exists():
            for line in path.read_text().splitlines():
                target, _, key, *_ = line.split()
                self._lines[target, key] = line

    def known(self, target: str, key: str, *, of_any: bool = False) -> Compiled | None:
        """`of_any`: of another Triton too."""
        _, triton, _, *numbers = self._lines.get((target, key), "- - -").split()
        return Compiled(*map(int, numbers)) if numbers and (of_any or triton == self._triton) else None

    def compile_for(self, target: str, key: str, work: Callable[[], Compiled]) -> Compiled:
        """Raises what `work` raises."""
        found = self.known(target, key)
        if found is None:
            found = work()
            line = f"{target} {self._triton} {key} {found.registers} {found.spills} {found.shared}"
            self._lines[target, key] = line
            if self._path:
                with self._path.open("a") as file:
                    file.write(line + "\n")
        return found

    def keep_only(self, those: Iterable[tuple[str, str]]) -> None:
        """Forget all but `those` targets and keys, and write them in that order."""
        self._lines = {at: self._lines[at] for at in those}
        if self._path:
            self._path.write_text("".join(line + "\n" for line in self._lines.values()))
