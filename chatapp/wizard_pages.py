"""What the wizard shows: rows made of models, repositories and downloads."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content

from chatapp.figures import duration, percent, size
from chatapp.sanitize import clean_line, shortened
from runtime.hub.protocol import Download, Fit, LocalModel, Machine, RemoteModel, Repo

NAME = 44
"""Columns of a name."""
_SHORTEST = 26
"""It gets no fewer, however narrow the terminal is."""
VERDICT = 10
"""Columns of a speed; other verdicts push aside what follows them."""
_FIGURES = 2 + 2 + 7 + 2 + VERDICT + 18
"""Columns beside a name, with room for a maker."""
_STYLES = {"gpu": "$success", "split": "$warning", "cpu": "$success", "no": "$error"}
_SLOW = 3.0  # tokens per second; what is slower is no fun


@dataclass(frozen=True, slots=True)
class Columns:
    """A model: its name, its size, a verdict with its colour, and what else there is to say."""

    name: str
    middle: str
    verdict: tuple[str, str]
    end: str = ""

    def laid_out(self, width: int) -> Content:
        """In so many columns: the name gives way to the figures, and what comes last to both."""
        verdict, colour = self.verdict
        verdict = verdict.ljust(VERDICT) if self.end else verdict
        room = min(max(width - _FIGURES, _SHORTEST), NAME)
        shown = shortened(self.name, room)
        gap = " " * max(room - cell_len(shown), 0)
        return Content.assemble(
            f"  {shown}{gap}  ",
            (f"{self.middle:>7}  ", "$foreground 60%"),
            (verdict, colour),
            (f"  {self.end}" if self.end else "", "$foreground 60%"),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One line to choose. Without `act` it is a heading, or something that cannot be chosen.

    `about` is shown below the list while the row is highlighted; `words` is what typing narrows by.
    """

    key: str
    text: Content | Columns
    about: str = ""
    words: str = ""
    act: Callable[[], Awaitable[None]] | None = None
    delete: Callable[[], Awaitable[None]] | None = None
    heading: bool = False
    best: bool = False

    @property
    def usable(self) -> bool:
        return self.act is not None or self.delete is not None

    def shown(self, width: int) -> Content:
        """Its text; what is there to be read only is wrapped."""
        text = self.text.laid_out(width) if isinstance(self.text, Columns) else self.text
        if self.best:
            return Content("").join([Content.styled("★", "$warning"), text[1:]])
        if self.usable or self.heading or text.cell_length <= width:
            return text
        lines = textwrap.wrap(text.plain.strip(), max(width - 2, 20))
        return Content.styled("\n".join(f"  {line}" for line in lines), "$foreground 60%")


def heading(text: str) -> Row:
    return Row(f"heading {text}", Content.styled(text, "bold $primary"), heading=True)


def note(text: str) -> Row:
    """Something to read in the place of rows."""
    return Row(f"note {text}", Content.styled(f"  {clean_line(text, 300)}", "$foreground 60%"))


def verdict(fit: Fit | None, problem: str = "") -> tuple[str, str]:
    """In a few words, and their colour."""
    if problem:
        return clean_line(problem, 60), "$error"
    if fit is None:
        return "", ""
    if fit.place == "no":
        return f"too large: takes {size(fit.need)}", _STYLES["no"]
    if fit.place == "gpu":
        return "fits on the GPU", _STYLES["gpu"]
    if fit.place == "split":
        return "partly on the GPU", _STYLES["split"]
    if fit.tok_per_s is None:
        return "fits", _STYLES["cpu"]
    speed = f"{fit.tok_per_s:.0f}" if fit.tok_per_s >= 9.95 else f"{fit.tok_per_s:.1f}"
    return f"~{speed} tok/s", "$warning" if fit.tok_per_s < _SLOW else _STYLES["cpu"]


def _sentence(*parts: str) -> str:
    text = ". ".join(part[:1].upper() + part[1:].rstrip(".") for part in parts if part)
    return f"{text}." if text else ""


def local_row(
    model: LocalModel,
    open_: bool,
    act: Callable[[], Awaitable[None]] | None,
    delete: Callable[[], Awaitable[None]] | None,
) -> Row:
    drafts = "drafts" if model.mtp or model.sidecar else ""
    end = ", ".join(part for part in ("open" if open_ else "", model.source, drafts) if part)
    name = model.name.removesuffix(".gguf")
    about = _sentence(model.problem, model.fit.sentence if model.fit else "", _quant(model.quant, model.about))
    text = Columns(name, size(model.bytes), verdict(model.fit, model.problem), end)
    return Row(f"local {model.path}", text, f"{about} {model.path}", f"{name} {model.path}", act, delete)


def remote_row(model: RemoteModel, act: Callable[[], Awaitable[None]] | None, *, repo: bool = False) -> Row:
    here = "here" if model.local else "update" if model.update else ""
    parts = f"{model.parts} parts" if model.parts > 1 else ""
    maker = model.repo.partition("/")[0] if repo else ""
    end = ", ".join(part for part in (here, "drafts" if model.mtp else "", parts, maker) if part)
    sidecar = f"its drafting block {', '.join(model.sidecars)} comes with it" if model.sidecars else ""
    about = _sentence(
        model.problem,
        model.fit.sentence if model.fit else "",
        _quant(model.quant, model.about),
        "it holds the drafting block (MTP), which makes replies faster" if model.mtp and not sidecar else sidecar,
    )
    text = Columns(model.name, size(model.bytes), verdict(model.fit, model.problem), end)
    return Row(f"remote {model.key}", text, f"{about} {model.repo}", f"{model.key} {model.quant}", act)


def _quant(name: str, about: str) -> str:
    return f"{name}: {about}" if about else ""


def repo_row(repo: Repo, act: Callable[[], Awaitable[None]]) -> Row:
    notes = [repo.model, "drafts" if repo.mtp else "", "gated" if repo.gated else ""]
    downloads = f"{repo.downloads:,} downloads" if repo.downloads is not None else ""
    end = ", ".join(part for part in (*notes, downloads) if part)
    shown = clean_line(repo.repo, NAME)
    text = Content.assemble(
        f"  {shown}{' ' * max(NAME - cell_len(shown), 0)}  ", (end, "$success" if repo.mtp else "$foreground 60%")
    )
    about = "Files with the drafting block (MTP), which makes replies faster" if repo.mtp else ""
    return Row(f"repo {repo.repo}", text, _sentence(about), f"{repo.repo} {repo.model}", act)


def download_row(download: Download, act: Callable[[], Awaitable[None]], delete: Callable[[], Awaitable[None]]) -> Row:
    name = download.file.rpartition("/")[2].removesuffix(".gguf")
    colour = "$error" if download.state == "failed" else "$accent"
    text = Columns(name, size(download.total), (progress(download), colour))
    return Row(f"download {download.key}", text, download.message or download.repo, download.key, act, delete)


def progress(download: Download) -> str:
    """How far a download is: `43 %, 12 MB/s, 3 min left`."""
    share = percent(download.done / download.total) if download.total else ""
    if download.state == "done":
        return "here"
    if download.state in ("paused", "failed"):
        return f"{download.state} at {share}"
    if download.state == "waiting":
        return f"stopped at {share}"
    if download.state == "checking":
        return "checking"
    speed = f"{size(round(download.rate))}/s" if download.rate else ""
    left = f"{duration(download.seconds_left)} left" if download.seconds_left is not None else ""
    return ", ".join(part for part in (share, speed, left) if part)


def machine_line(machine: Machine) -> str:
    """What there is of memory, of disk and of speed."""
    gpus = [f"{gpu.name}, {size(gpu.memory)}" + ("" if gpu.used else " (not used yet)") for gpu in machine.gpus]
    memory = f"{size(machine.available)} of {size(machine.memory)} memory free"
    disk = f"{size(machine.disk_free)} disk free"
    speed = f"memory {size(round(machine.bandwidth))}/s" if machine.bandwidth else ""
    return " · ".join(part for part in (*gpus, memory, speed, disk) if part)


def narrowed(rows: Iterable[Row], text: str) -> list[Row]:
    """The rows with all words of the text, and the headings that still have some below them."""
    words = text.casefold().split()
    kept: list[Row] = []
    for row in rows:
        if row.heading:
            if kept and kept[-1].heading:
                kept.pop()
            kept.append(row)
        elif not words or (row.act and all(word in row.words.casefold() for word in words)):
            kept.append(row)
    if kept and kept[-1].heading:
        kept.pop()
    return kept
