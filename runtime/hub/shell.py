"""`qwenchat models …`: what the wizard of the chat does, in the shell."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from runtime.command_line import Parser, whole
from runtime.errors import printable
from runtime.hub import downloads, models, remote
from runtime.hub.downloads import Job
from runtime.hub.protocol import Download, LocalModel, RemoteModel
from runtime.hub.sentences import HubError, explain

FOLDERS_VARIABLE = "QWENCHAT_MODEL_FOLDERS"


def run(words: Sequence[str]) -> int:
    """The exit code: 0, 1 with a sentence on stderr, 2 for words that cannot be followed, 130 for Ctrl+C."""
    found = _parser().parse_args(words)
    around = models.Surroundings()
    around.context = found.context
    try:
        found.work(found, around)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        print(f"qwenchat: {explain(error, getattr(found, 'repo', ''))}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="qwenchat models",
        description="Models on this machine and on the hub. Downloads go to the Hugging Face cache (HF_HOME), from "
        "HF_ENDPOINT if that is set, and go on where they stopped.",
    )
    parser.set_defaults(work=_list, json=False, context=None)
    commands = parser.add_subparsers(metavar="COMMAND")

    def add(name: str, work: Callable[..., None], help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=help)
        command.add_argument(
            "--context", type=whole(1), metavar="N", help="tokens of context to judge by (default: 32768)"
        )
        command.add_argument("--json", action="store_true", help="one JSON array on stdout")
        command.set_defaults(work=work)
        return command

    add("list", _list, "the models that are here, and downloads that run or have stopped")
    add("advise", _advise, "what suits this machine, the best first")
    search = add("search", _search, "repositories of the hub; without words, those worth knowing")
    search.add_argument("words", nargs="*", metavar="WORD")
    show = add("show", _show, "the files of a repository, each with its verdict for this machine")
    show.add_argument("repo", metavar="OWNER/NAME")
    get = add("get", _get, "download a model, or go on with it")
    get.add_argument("repo", metavar="OWNER/NAME")
    get.add_argument(
        "which", nargs="?", default="", metavar="FILE|QUANTISATION", help="default: the usual one that fits"
    )
    add("updates", _updates, "what the hub has changed since it was downloaded")
    drop = add("rm", _remove, "delete a model that was downloaded, or what a stopped download has left")
    drop.add_argument("name", metavar="PATH|NAME")
    drop.add_argument("-y", "--yes", action="store_true", help="do not ask")
    return parser


def _list(found: argparse.Namespace, around: models.Surroundings) -> None:
    here = models.local(around, around.machine(), folders())
    left = downloads.unfinished()
    if found.json:
        print(json.dumps([*map(asdict, here), *map(asdict, left)], indent=2))
        return
    for model in here:
        _say(*_local_lines(model))
    for download in left:
        state = {"running": "downloading", "waiting": "stopped"}.get(download.state, download.state)
        _say(f"{_size(download.total)}  {_percent(download)}, {state}  {download.key}")
    if any(download.state != "running" for download in left):
        print("`qwenchat models get OWNER/NAME FILE` goes on with a download that has stopped.", file=sys.stderr)
    if not here and not left:
        print("There are no models here yet; `qwenchat models advise` says which suit this machine.", file=sys.stderr)


def folders() -> list[str]:
    """Those that the environment names, to look in besides those of other tools."""
    return [folder for folder in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if folder]


def _say(*lines: str) -> None:
    """On stdout, whatever names are in it."""
    for text in lines:
        print(printable(text, 2000))


def _local_lines(model: LocalModel) -> tuple[str, str]:
    state = model.problem or (model.fit.sentence if model.fit else "")
    mtp = "  drafts" if model.mtp or model.sidecar else ""
    return f"{_size(model.bytes)}  {model.path}", f"          {model.source}{mtp}: {state}"


def _advise(found: argparse.Namespace, around: models.Surroundings) -> None:
    files = models.advised(around, around.machine())
    _print(files, found.json, repo=True)
    if files and not found.json:
        print(f"\nBest here: qwenchat models get {files[0].repo} {files[0].quant or files[0].file}", file=sys.stderr)


def _search(found: argparse.Namespace, around: models.Surroundings) -> None:
    query = " ".join(found.words)
    repos = models.searched(query) if query else models.catalogue()
    if found.json:
        print(json.dumps([asdict(repo) for repo in repos], indent=2))
        return
    for repo in repos:
        notes = [repo.model, "drafts" if repo.mtp else "", "gated" if repo.gated else ""]
        _say("  ".join([repo.repo, *(note for note in notes if note)]))
    if not repos:
        print(f"Nothing on the hub is called {printable(query)!r}.", file=sys.stderr)


def _show(found: argparse.Namespace, around: models.Surroundings) -> None:
    _print(
        models.listed(remote.listing(remote.repo_of(found.repo) or found.repo), around, around.machine()), found.json
    )


def _print(files: Sequence[RemoteModel], as_json: bool, *, repo: bool = False) -> None:
    if as_json:
        print(json.dumps([asdict(file) for file in files], indent=2))
        return
    for file in files:
        notes = ["here" if file.local else "", "update" if file.update else "", "drafts" if file.mtp else ""]
        name = file.key if repo else file.file
        verdict = file.problem or (file.fit.sentence if file.fit else "")
        about = f" ({file.about})" if file.about else ""
        _say("  ".join([_size(file.bytes), name, *(note for note in notes if note)]), f"          {verdict}{about}")
    if not files:
        print("There is no model here that qwenchat runs.", file=sys.stderr)


def _get(found: argparse.Namespace, around: models.Surroundings) -> None:
    repo = remote.repo_of(found.repo) or found.repo
    files = models.listed(remote.listing(repo), around, around.machine())
    file = _chosen(files, found.which, repo)
    if file.local:
        print(file.local)
        return
    if file.problem:
        raise HubError(f"{file.file}: {file.problem}.")
    if file.fit and file.fit.place == "no":
        print(f"qwenchat: {file.file} {file.fit.sentence}. It is downloaded all the same.", file=sys.stderr)
    bar = _Bar(found.json)
    job = Job(downloads.find_item(file.repo, file.file), bar.show)
    job.start()
    try:
        while job.is_alive():
            job.join(0.2)
    except KeyboardInterrupt:
        job.leave()
        job.join(5)
        bar.end()
        print(f"Stopped; `qwenchat models get {file.repo} {file.file}` goes on from here.", file=sys.stderr)
        raise
    bar.end()
    if job.download.state != "done":
        raise HubError(job.download.message)
    print(json.dumps(asdict(job.download)) if found.json else job.download.path)


def _chosen(files: Sequence[RemoteModel], which: str, repo: str) -> RemoteModel:
    if not which:
        usual = [file for quant in models.USUAL for file in files if file.quant == quant]
        fitting = [file for file in usual if file.fit and file.fit.place != "no" and not file.problem]
        if not (fitting or usual or files):
            raise HubError(f"{repo} has no model that qwenchat runs.")
        return (fitting or usual or list(files))[0]
    wanted = which.lower()
    for file in (*(f for f in files if f.file.lower() == wanted), *(f for f in files if f.quant.lower() == wanted)):
        return file
    quants = ", ".join(dict.fromkeys(file.quant or file.file for file in files))
    raise HubError(f"{repo} has no {printable(which)}; it has {quants}.")


class _Bar:
    """One line on stderr that is written over, where it is a terminal; else a line for what is worth one."""

    def __init__(self, quiet: bool) -> None:
        self._tty = sys.stderr.isatty() and not quiet
        self._last = ""
        self._message = ""

    def show(self, download: Download) -> None:
        if download.message and download.message != self._message and download.state != "failed":
            self._write("")
            print(f"\r{download.message}", file=sys.stderr)
        self._message = download.message
        if self._tty:
            self._write(line(download))

    def end(self) -> None:
        if self._tty:
            print(file=sys.stderr)

    def _write(self, text: str) -> None:
        if self._tty:
            width = max(shutil.get_terminal_size().columns - 1, 20)
            print(f"\r{text[:width]:<{width}}", end="", file=sys.stderr, flush=True)


def line(download: Download) -> str:
    """How far a download is, in one line."""
    done = f"{_percent(download)} of {_size(download.total).strip()}"
    if download.state == "checking":
        return f"{done}, checking"
    parts = [done]
    if download.rate:
        parts.append(f"{download.rate / 1e6:.1f} MB/s")
    if download.seconds_left is not None:
        parts.append(f"{time.strftime('%H:%M:%S', time.gmtime(download.seconds_left))} left")
    return ", ".join(parts)


def _percent(download: Download) -> str:
    return f"{100 * download.done // max(download.total, 1)} %"


def _size(number: int) -> str:
    return f"{number / 1e9:5.1f} GB" if number >= 5e7 else f"{number / 1e6:5.1f} MB"


def _updates(found: argparse.Namespace, around: models.Surroundings) -> None:
    files = models.updates(around, around.machine())
    if files or found.json:
        _print(files, found.json, repo=True)
    else:
        print("What was downloaded is what the hub has.", file=sys.stderr)


def _remove(found: argparse.Namespace, around: models.Surroundings) -> None:
    left = [download for download in downloads.unfinished() if found.name in (download.key, download.file)]
    here = [m for m in models.local(around, around.machine()) if found.name in (m.path, m.name, f"{m.repo}/{m.file}")]
    if not left and not here:
        raise HubError(f"Nothing here is called {printable(found.name)}; `qwenchat models list` shows what there is.")
    if len(here) > 1:
        raise HubError("Several are called so; name one by its path: " + ", ".join(model.path for model in here))
    if not found.yes and sys.stdin.isatty():
        what = here[0].path if here else left[0].key
        if input(f"Delete {what}? [y/N] ").strip().lower() not in ("y", "yes"):
            return
    for download in left:
        downloads.discard(download.repo, download.file)
    for model in here:
        freed = models.remove(model.path)
        print(f"{_size(freed).strip()} are free again.", file=sys.stderr)
