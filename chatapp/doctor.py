"""`qwenchat doctor`: what is well and what is not, with what to do about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from chatapp import paths, settings
from chatapp.figures import size
from chatapp.local import environment
from chatapp.remote.address import is_address
from chatapp.sanitize import clean_line

Check = tuple[str, str, str, str]
"""Name, state (`good`, `warning`, `bad`), fact, advice."""

_MARKS = {"good": ("✓", "32"), "warning": ("!", "33"), "bad": ("✗", "31")}
_NAME = 18  # columns
_SMALL = (80, 24)


def run(words: Sequence[str]) -> int:
    """0 if nothing is bad, 1 if something is, 2 for words that cannot be followed."""
    if words not in ([], ["--json"]):
        wanted = words in (["-h"], ["--help"])
        print(
            "usage: qwenchat doctor [--json]\n\nLook at the machine, the terminal, the folders and the models, and say "
            "what to do.\n--json prints one JSON object a line.",
            file=sys.stdout if wanted else sys.stderr,
        )
        return 0 if wanted else 2
    worst = 0
    for check in (*_terminal(), *_folders(), *_chosen()):
        worst = max(worst, _show(check, as_json=bool(words)))
    for check in _machine():
        worst = max(worst, _show(check, as_json=bool(words)))
    return worst


def _show(check: Check, *, as_json: bool) -> int:
    name, state, fact, advice = (clean_line(part, 400) for part in check)
    if as_json:
        print(json.dumps({"name": name, "state": state, "fact": fact, "advice": advice}), flush=True)
    else:
        mark, colour = _MARKS[state]
        if "utf" not in (sys.stdout.encoding or "").lower():
            mark = {"✓": "ok", "✗": "X"}.get(mark, mark)
        if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
            mark = f"\x1b[{colour}m{mark}\x1b[0m"
        print(f"{mark} {name:<{_NAME}} {fact}", flush=True)
        if advice:
            print(f"  {'':<{_NAME}} → {advice}", flush=True)
    return int(state == "bad")


def _terminal() -> Iterator[Check]:
    term, colours = os.environ.get("TERM", ""), os.environ.get("COLORTERM", "")
    program = os.environ.get("TERM_PROGRAM", "")
    shown = " ".join(part for part in (term, program and f"({program})") if part) or "no TERM is set"
    if term in ("", "dumb"):
        yield (
            "Terminal",
            "bad",
            shown,
            "The chat needs a terminal that can place text; `qwenchat -p` works without.",
        )
    else:
        yield "Terminal", "good", shown, ""
    if os.environ.get("NO_COLOR"):
        yield "Colours", "good", "off, by NO_COLOR", ""
    elif colours in ("truecolor", "24bit"):
        yield "Colours", "good", "16 million", ""
    else:
        advice = "If it shows more, set COLORTERM=truecolor; in tmux also `set -as terminal-features ,*:RGB`."
        yield "Colours", "warning", f"{256 if '256' in term else 'few'}, as far as the terminal says", advice
    columns, lines = shutil.get_terminal_size()
    small = columns < _SMALL[0] or lines < _SMALL[1]
    yield "Size", "warning" if small else "good", f"{columns} × {lines}", "80 × 24 shows everything." if small else ""
    encoding = sys.stdout.encoding or "unknown"
    if "utf" in encoding.lower():
        yield "Text", "good", encoding, ""
    else:
        yield "Text", "warning", encoding, "Set LANG to a UTF-8 locale, such as LANG=C.UTF-8."


def _folders() -> Iterator[Check]:
    for name, path in (
        ("Settings", paths.settings_path()),
        ("Conversations", paths.database_path()),
        ("States", paths.snapshots_path()),
        ("Log", paths.log_path()),
    ):
        there = path if path.exists() else path.parent
        while not there.exists():
            there = there.parent
        files = [path] if path.is_file() else list(path.glob("**/*")) if path.is_dir() else []
        used = sum(file.stat().st_size for file in files if file.is_file())
        fact = f"{path}, {size(used)}" if files else f"{path}, nothing yet"
        if os.access(there, os.W_OK):
            yield name, "good", fact, ""
        else:
            yield name, "bad", fact, "It cannot be written: QWENCHAT_HOME names another folder for everything."


def _chosen() -> Iterator[Check]:
    saved, warnings = settings.load(paths.settings_path())
    for warning in warnings:
        yield "Settings", "warning", warning, "Correct the file."
    model = os.environ.get("QWENCHAT_MODEL") or saved.model
    if model is None:
        yield "Model", "good", "none chosen yet", "/models in the chat finds one."
    elif is_address(model) or Path(paths.model_path(model)).is_file():
        yield "Model", "good", model, ""
    else:
        yield "Model", "bad", f"{model} is not there", "/models in the chat chooses another."


def _machine() -> Iterator[Check]:
    """What the runtime finds, as it finds it; its process may break where the machine is broken."""
    command = [sys.executable, "-P", "-m", "runtime.doctor"]
    folders = settings.load(paths.settings_path())[0].model_folders
    surroundings = {**({"QWENCHAT_MODEL_FOLDERS": folders} if folders else {}), **environment()}
    with subprocess.Popen(
        command, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout and child.stderr
        for line in child.stdout:
            found = json.loads(line)
            yield found["name"], found["state"], found["fact"], found["advice"]
        problem = child.stderr.read().strip().splitlines()
    if child.returncode:
        yield "Runtime", "bad", problem[-1] if problem else "it does not start", "Install qwenchat again."
