"""The command line: what its words and options ask for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from chatapp import paths, settings
from chatapp.options import ChatOptions, drafts
from chatapp.remote import address
from chatapp.remote.address import AddressError, is_address
from chatapp.settings import Settings
from runtime.quick_dataclass import dataclass

MODEL_VARIABLE = "QWENCHAT_MODEL"

NO_MODEL = (
    "No model is given. `qwenchat models advise` says which suit this machine and how to download one; "
    "then name its file: qwenchat MODEL.gguf"
)

BUILT_IN = "The built-in model answers: a tiny demonstration. -m FILE names a real one."


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
    from chatapp.words import parser

    found = parser().parse_intermixed_args(list(argv))
    words: list[str] = found.words
    if found.resume and _names_model(found.resume):  # `--resume MODEL.gguf` means the latest
        words, found.resume = [found.resume, *words], ""
    model = found.model
    if model is None and found.server is None and (named := next((word for word in words if _names_model(word)), None)):
        words.remove(named)
        model = named
    for option in ("model", "conversation"):
        if getattr(found, option) is not None and not getattr(found, option).strip():
            raise UsageError(f"--{option} takes a name, and here is none.")
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
        given=tuple(arguments.choices),
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
        raise UsageError(no_file(arguments.model))
    return arguments.model


def no_file(model: str) -> str:
    """Why a model cannot be opened whose path leads to no file."""
    with contextlib.suppress(OSError):  # a name that is too long
        if Path(model).is_dir():
            return f"{model} is a folder, and not a model file."
    return f"There is no file {model}."


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
