"""The command line: what its words and options ask for."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NoReturn

from chatapp import paths, settings
from chatapp.options import ChatOptions, drafts
from chatapp.remote import address
from chatapp.remote.address import AddressError, is_address
from chatapp.settings import Settings, SettingsError
from runtime.quick_dataclass import dataclass

MODEL_VARIABLE = "QWENCHAT_MODEL"

NO_MODEL = (
    "No model is given. `qwenchat models advise` says which suit this machine and how to download one; "
    "then name its file: qwenchat MODEL.gguf"
)

BUILT_IN = "The built-in model answers: a tiny demonstration. -m FILE names a real one."

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


class UsageError(Exception):
    """The command line cannot be followed; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line, not yet completed by settings."""

    model: str | None = None
    server: str | None = None  # as written
    prompt: str = ""
    one_shot: bool = False  # asked for by -p
    json: bool = False
    conversation: str | None = None
    resume: str | None = None  # "" for the latest
    system: str | None = None
    choices: Mapping[str, settings.Value] = field(default_factory=dict)  # settings given as options


def parse(argv: Sequence[str]) -> Arguments:
    """Raises UsageError; --help and --version end the program."""
    if not argv:  # as most start it, and the parser takes a while to make
        return Arguments()
    found = _parser().parse_intermixed_args(list(argv))
    words: list[str] = found.words
    if found.resume and _names_model(found.resume):  # `--resume MODEL.gguf` means the latest
        words, found.resume = [found.resume, *words], ""
    model = found.model
    if model is None and found.server is None and (named := next((word for word in words if _names_model(word)), None)):
        words.remove(named)
        model = named
    if found.prompt is not None and words:
        raise UsageError(f"The prompt is given twice: by -p and as {' '.join(words)!r}.")
    choices = {name: getattr(found, name) for name in settings.FIELDS if getattr(found, name, None) is not None}
    return Arguments(
        model=model if model is None or found.server else paths.model_path(model),
        server=found.server,
        prompt=_text(" ".join(words) if found.prompt is None else found.prompt),
        one_shot=found.prompt is not None,
        json=found.json,
        conversation=found.conversation and _text(found.conversation),
        resume=found.resume and _text(found.resume),
        system=None if found.system is None else _text(found.system),
        choices={name: value for name, value in choices.items() if name not in ("model", "system")},
    )


def complete(arguments: Arguments, saved: Settings, environment: Mapping[str, str]) -> ChatOptions:
    """The arguments, where they leave something open the environment's model, and else the settings.

    Raises UsageError if the command line names a model file that does not exist, or a server that is none.
    """
    named = _named_model(arguments, saved)
    found = [each for each in (named, environment.get(MODEL_VARIABLE), saved.model, paths.built_in_model()) if each]
    model = next(iter(found), None)
    local = next((paths.model_path(each) for each in found if not is_address(each)), None)
    choices = {name: getattr(saved, name) for name in settings.FIELDS} | dict(arguments.choices)
    choices |= {"model": model and paths.model_path(model)}
    if arguments.system is not None:
        choices |= {"system": arguments.system}
    merged = Settings(**choices)
    return ChatOptions(
        model=merged.model,
        local_model=local,
        model_named=named is not None,
        prompt=arguments.prompt,
        system=merged.system,
        system_override=arguments.system,
        sampling=merged.sampling(),
        thinking=merged.thinking,
        thinking_budget=merged.thinking_budget,
        auto_titles=merged.auto_titles,
        preserve_thinking=merged.preserve_thinking,
        drafts=drafts(merged.draft),
        model_folders=tuple(folder for folder in merged.model_folders.split(os.pathsep) if folder),
        context_length=merged.context_length,
        ops=merged.ops,
        threads=merged.threads,
        kv_type=merged.kv_type,
        draft_vocabulary=merged.draft_vocabulary,
        snapshot_budget=merged.snapshot_budget,
        memory_budget=merged.memory_budget,
        theme=merged.theme,
    )


def _named_model(arguments: Arguments, saved: Settings) -> str | None:
    """What the command line names: a file, or a model on a server."""
    try:
        if arguments.server is not None:
            return str(address.read(arguments.server, saved.servers, arguments.model or ""))
        if arguments.model is not None and is_address(arguments.model):
            return str(address.parse(arguments.model))
    except AddressError as error:
        raise UsageError(str(error)) from error
    if arguments.model is not None and not _is_file(arguments.model):
        raise UsageError(f"There is no file {arguments.model}.")
    return arguments.model


class _Version(argparse.Action):
    """Looks the version up when it is asked for: that reads files."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import importlib.metadata

        print(f"qwenchat {importlib.metadata.version('qwenchat')}")
        parser.exit()


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sentence = re.sub(r"^argument (\S+): ", r"\1 ", message).rstrip(".")
        raise UsageError(f"{sentence[:1].upper()}{sentence[1:]}. See qwenchat --help.")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="qwenchat",
        description="Chat in the terminal with a Qwen3.5 or 3.6 model that runs on this machine.",
        epilog=_EPILOG.format(variable=MODEL_VARIABLE, settings=paths.settings_path()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
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
    group = parser.add_argument_group("model")
    group.add_argument("--context", dest="context_length", **_setting("context_length"))
    group.add_argument("--ops", **_setting("ops"))
    group.add_argument("--threads", **_setting("threads"))
    group.add_argument("--kv", dest="kv_type", **_setting("kv_type"))
    group.add_argument("--draft", **_setting("draft"))
    group.add_argument("--draft-vocabulary", **_setting("draft_vocabulary"))
    group = parser.add_argument_group("reply")
    group.add_argument("--thinking", metavar="on|off", type=_on_off, help=_help("thinking"))
    group.add_argument("--thinking-budget", **_setting("thinking_budget"))
    for name in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty"):
        group.add_argument("--" + name.replace("_", "-"), **_setting(name))
    group.add_argument("--seed", **_setting("seed"))
    return parser


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
            raise argparse.ArgumentTypeError(f"takes {settings.expected(name)}, not {word!r}") from None

    return read


def _on_off(word: str) -> bool:
    if word not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"takes on or off, not {word!r}")
    return word == "on"


def _names_model(word: str) -> bool:
    return word.lower().endswith(".gguf") or _is_file(word)


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # a prompt, too long for a name
        return False


def _text(word: str) -> str:
    """A word of the command line; bytes that are not in the terminal's encoding become U+FFFD."""
    return os.fsencode(word).decode("utf-8", "replace") if not word.isascii() else word
