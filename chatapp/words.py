"""The words and options of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from chatapp import paths, settings
from chatapp.cli import MODEL_VARIABLE, UsageError
from chatapp.settings import SettingsError
from runtime import command_line

_EPILOG = """\
examples:
  qwenchat Qwen3.5-4B-Q4_K_M.gguf                 chat with a model
  qwenchat --resume                               go on with the latest conversation
  qwenchat -p "Name three rivers."                answer once, on stdout
  git diff | qwenchat "Write a commit message."   the same, with a text
  qwenchat --server http://host:8000              chat with a model that a server has
  qwenchat models --help                          find and download models
  qwenchat doctor                                 see what is well and what is not
  qwenchat export -o chat.html                    the latest conversation as a page
  qwenchat bench --help                           measure what the engine does

The model is the one named, else {variable}, else `model` of the settings, else a tiny built-in one.
Settings are in {settings}; beside it, the folders themes (NAME.toml),
personas (NAME.md) and presets (NAME.toml) hold your own.
QWENCHAT_HOME names one folder for conversations, settings and the log.
"""


class _Version(argparse.Action):
    """Looks the version up when it is asked for: that reads files."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import importlib.metadata

        print(f"qwenchat {importlib.metadata.version('qwenchat')}")
        parser.exit()


class Parser(command_line.Parser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(self.sentence(message))


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="qwenchat",
        description="Chat in the terminal with a Qwen3.5 or 3.6 model that runs on this machine.",
        epilog=_EPILOG.format(variable=MODEL_VARIABLE, settings=paths.settings_path()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("words", nargs="*", metavar="MODEL.gguf | PROMPT", help="a model file, and what to say first")
    add("-m", "--model", metavar="FILE", help="the model file; with --server, the name of the model there")
    add("--server", metavar="URL|NAME", help="talk to a model on a server: its address, or its name in the settings")
    add("-p", "--prompt", metavar="TEXT", help="answer this on stdout and end; a text on stdin is put below it")
    add("--json", action="store_true", help="answer once, as one JSON object with figures")
    add("--conversation", metavar="NAME", help="go on with the conversation of that name, or begin it")
    resume = "go on with the latest conversation, or the one of this title, name or id"
    add("--resume", metavar="NAME", nargs="?", const="", help=resume)
    add("--system", metavar="TEXT", help="the system prompt")
    add("--version", action=_Version, nargs=0, help="the version of qwenchat")
    group = made.add_argument_group("model")
    group.add_argument("--context", dest="context_length", **_setting("context_length"))
    group.add_argument("--ops", **_setting("ops"))
    group.add_argument("--threads", **_setting("threads"))
    group.add_argument("--kv", dest="kv_type", **_setting("kv_type"))
    group.add_argument("--draft", **_setting("draft"))
    group.add_argument("--draft-vocabulary", **_setting("draft_vocabulary"))
    group = made.add_argument_group("reply")
    group.add_argument("--thinking", metavar="on|off", type=_on_off, help=_help("thinking"))
    group.add_argument("--thinking-budget", **_setting("thinking_budget"))
    for name in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty"):
        group.add_argument("--" + name.replace("_", "-"), **_setting(name))
    group.add_argument("--seed", **_setting("seed"))
    return made


def _setting(name: str) -> dict[str, Any]:
    _, choices = settings.kind(name)
    return {"type": _value_of(name), "help": _help(name), "metavar": "|".join(choices) or "N"}


def _help(name: str) -> str:
    description: str = settings.FIELDS[name].metadata["description"]
    return description[0].lower() + description[1:].rstrip(".").replace("%", "%%")


def _value_of(name: str) -> Callable[[str], settings.Value]:
    """Reads one word as the setting `name` takes it."""
    kind, _ = settings.kind(name)

    def read(word: str) -> settings.Value:
        try:
            return settings.check(name, word if kind is str else kind(word))
        except (ValueError, SettingsError):
            raise argparse.ArgumentTypeError(f"takes {settings.expected(name, word)}, not {word!r}") from None

    return read


def _on_off(word: str) -> bool:
    if word not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"takes on or off, not {word!r}")
    return word == "on"
