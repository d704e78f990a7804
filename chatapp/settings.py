"""The user's settings: a frozen dataclass and its TOML file, which keeps the user's comments and unknown keys."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import tempfile
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chatapp.options import Draft, KvType, Notify, NotifyWhen, Ops
from runtime.protocol import Sampling
from runtime.quick_dataclass import dataclass

if TYPE_CHECKING:
    import tomlkit

When = Literal["now", "load", "start"]
"""At once, when a model is opened, or when the program starts."""
Value = str | int | float | bool | None


_LARGEST = 2**63 - 1  # what TOML and the engines hold
_MODEL = "as the model's makers advise"


class SettingsError(Exception):
    """A setting or its file cannot be used; the message is a sentence for the user."""


def _about(
    description: str,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    unset: str = "",
    group: str = "",
    when: When = "now",
) -> dict[str, Any]:
    """A setting's one-sentence description and, for a number, its bounds, `low` and `high` included, `above` not.

    `unset`: what holds where None does. `group`: the heading that begins with this setting. `when` a change of it is
    felt.
    """
    bounds = {"low": low, "high": high, "above": above}
    return {"description": description, **bounds, "unset": unset, "group": group, "when": when}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Each is one key of the file, the last ones a table; None, which is no key, leaves the choice to the presets."""

    model: str | None = field(
        default=None,
        metadata=_about(
            "The model file, or served model, that opens when none is named.",
            unset="the built-in one",
            group="Model",
            when="start",
        ),
    )
    model_folders: str = field(
        default="", metadata=_about("Folders with model files, besides those of other tools; as in PATH.")
    )
    context_length: int | None = field(
        default=None,
        metadata=_about(
            "Tokens of context to open the model with.", low=16, unset="as the file allows, 32,768 at most", when="load"
        ),
    )
    ops: Ops = field(
        default="auto", metadata=_about("Which implementation of the operations runs the model.", when="load")
    )
    threads: int | None = field(
        default=None,
        metadata=_about(
            "How many CPU threads run the model.", low=1, high=1024, unset="one for each core", when="load"
        ),
    )
    kv_type: KvType = field(
        default="auto", metadata=_about("How keys and values are kept; q8 takes less memory.", when="load")
    )
    memory_budget: float | None = field(
        default=None,
        metadata=_about(
            "GB of memory for the states of conversations.",
            0,
            100_000,
            unset="a quarter of the memory at most",
            when="load",
        ),
    )
    snapshot_budget: float | None = field(
        default=None,
        metadata=_about(
            "GB on disk for the states of conversations; 0 keeps none there.", 0, 100_000, unset="16", when="load"
        ),
    )
    draft: Draft = field(
        default="auto",
        metadata=_about("Tokens the model drafts at each step; auto drafts as many as pay.", unset="auto"),
    )
    draft_vocabulary: int | None = field(
        default=None,
        metadata=_about(
            "Draft of so many frequent tokens: quicker in a large vocabulary.", low=1, unset="all", when="load"
        ),
    )
    thinking: bool | None = field(
        default=None,
        metadata=_about("Whether the model thinks before it answers.", unset="as the model does", group="Replies"),
    )
    thinking_budget: int | None = field(
        default=None, metadata=_about("Tokens after which a thought is closed.", low=0, unset="no limit")
    )
    preserve_thinking: bool | None = field(
        default=None, metadata=_about("Whether earlier thoughts stay in the prompt.", unset="as the model does")
    )
    auto_titles: bool = field(
        default=True, metadata=_about("Whether the model gives conversations their titles while it is idle.")
    )
    system: str = field(default="", metadata=_about("The system prompt of new conversations."))
    temperature: float | None = field(
        default=None, metadata=_about("How freely words are chosen; 0 always takes the likeliest.", 0, 5, unset=_MODEL)
    )
    top_p: float | None = field(
        default=None,
        metadata=_about("Keep the likeliest tokens up to this total probability.", above=0, high=1, unset=_MODEL),
    )
    top_k: int | None = field(
        default=None, metadata=_about("Keep this many of the likeliest tokens; 0 keeps all.", low=0, unset=_MODEL)
    )
    min_p: float | None = field(
        default=None, metadata=_about("Drop tokens less likely than this share of the likeliest.", 0, 1, unset=_MODEL)
    )
    presence_penalty: float | None = field(
        default=None, metadata=_about("Lower the logit of every token that occurred.", -2, 2, unset=_MODEL)
    )
    repetition_penalty: float | None = field(
        default=None, metadata=_about("Divide the logit of tokens that occurred; 1 is off.", 0.01, 10, unset=_MODEL)
    )
    seed: int | None = field(
        default=None, metadata=_about("The seed of the random choices.", 0, 2**63 - 1, unset="another each time")
    )
    max_tokens: int | None = field(
        default=None, metadata=_about("The longest reply in tokens, its thought included.", low=1, unset="no limit")
    )
    theme: str | None = field(default=None, metadata=_about("The colours of the chat.", unset="ink", group="Comfort"))
    reduced_motion: bool = field(
        default=False, metadata=_about("Whether nothing moves by itself: the cursor stands still, and nothing slides.")
    )
    vim_moves: bool = field(
        default=False,
        metadata=_about("Whether j, k, d, u, g and G scroll once Esc has left the line you write in; i goes back."),
    )
    notify: Notify = field(
        default="bell", metadata=_about("How the end of a long reply is told while you look elsewhere.")
    )
    notify_when: NotifyWhen = field(
        default="away", metadata=_about("Whether that is told only while the terminal is not in focus.")
    )
    notify_seconds: float = field(
        default=10.0, metadata=_about("Seconds that a reply takes at least before its end is told.", 0, 86_400)
    )
    keys: Mapping[str, object] = field(default_factory=dict)  # the table [keys]: ids of bindings and their keys
    servers: Mapping[str, object] = field(default_factory=dict)  # the tables [servers.NAME], see remote.profiles

    def sampling(self) -> Sampling:
        return Sampling(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Sampling)})


TABLES = ("keys", "servers")
FIELDS: Mapping[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Settings) if f.metadata}


@functools.cache
def kind(name: str) -> tuple[type, tuple[str, ...]]:
    """The Python type of a setting without its None, and its choices if only some words are allowed."""
    hint = _hints()[name]
    if typing.get_origin(hint) is typing.Literal:
        return str, typing.get_args(hint)
    return next((part for part in typing.get_args(hint) if part is not type(None)), hint), ()


@functools.cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Settings)


def read(name: str, word: str) -> Value:
    """One word, as a user writes it, as the setting takes it. Raises SettingsError."""
    python_type, _ = kind(name)
    try:
        if python_type is bool:
            value: object = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}[
                word.strip().lower()
            ]
        else:
            value = word if python_type is str else python_type(word.strip().replace(",", "."))
        return check(name, value)
    except (KeyError, ValueError, OverflowError, SettingsError):
        raise SettingsError(f"{name} takes {expected(name, word)}, not {_shown(word)}.") from None


def expected(name: str, given: object = None) -> str:
    """What a setting takes, in words that follow "takes"; if too much for any was `given`, with what is the most."""
    python_type, choices = kind(name)
    if choices:
        return "one of " + ", ".join(choices)
    if python_type is bool:
        return "true or false"
    if python_type is str:
        return "a text"
    noun = "a whole number" if python_type is int else "a number"
    low, high = FIELDS[name].metadata["low"], FIELDS[name].metadata["high"]
    if (above := FIELDS[name].metadata["above"]) is not None:
        return f"{noun} above {above}" + (f" and up to {high}" if high is not None else "")
    if high is None and _is_too_much(given):
        high = _LARGEST
    if low is None:
        return noun
    return f"{noun} from {low} to {high}" if high is not None else f"{noun} of at least {low}"


def _is_too_much(given: object) -> bool:
    """Whether a number, or a word for one, is more than any setting takes."""
    if isinstance(given, str):  # which may have more digits than Python reads
        return given.strip().isdecimal() and len(given.strip()) >= len(str(_LARGEST))
    return isinstance(given, int) and given > _LARGEST


def check(name: str, value: object) -> Value:
    """The value as the setting keeps it. Raises SettingsError if it is not one the setting takes."""
    python_type, choices = kind(name)
    if value is None and FIELDS[name].default is None:
        return None
    if type(value) is int and abs(value) <= _LARGEST and (python_type is float or str(value) in choices):
        value = python_type(value)
    good = type(value) is python_type and (not choices or value in choices)
    if good and isinstance(value, int | float) and not isinstance(value, bool):
        bounds = FIELDS[name].metadata
        good = (
            abs(value) <= _LARGEST
            and (bounds["low"] is None or value >= bounds["low"])
            and (bounds["above"] is None or value > bounds["above"])
            and (bounds["high"] is None or value <= bounds["high"])
        )
    if not good:
        raise SettingsError(f"{name} takes {expected(name, value)}, not {_shown(value)}.")
    return typing.cast(Value, value)


def load(path: Path) -> tuple[Settings, list[str]]:
    """The settings of a file, and a sentence for each part of it that could not be used.

    What cannot be used keeps its default. Keys that are not settings are left alone, with a sentence.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError, RecursionError) as error:  # of bytes, of syntax, or of a number without measure
        return Settings(), [f"{_unreadable(path, error)} The default settings are used."]
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for key, value in document.items():
        if key in TABLES and isinstance(value, dict):
            values[key] = value
            continue
        if key in TABLES:
            warnings.append(f"{path}: {key} is a table, [{key}], and nothing else; it is ignored.")
            continue
        if key not in FIELDS:
            warnings.append(f"{path}: {_shown(key)} is not a setting; it is ignored.")
            continue
        try:
            values[key] = check(key, value)
        except SettingsError as error:
            warnings.append(f"{path}: {error} The default is used.")
    return Settings(**values), warnings


def update(path: Path, changes: Mapping[str, Value]) -> Settings:
    """Write these settings, and only these, into the file; None removes a key. Returns what the file then holds.

    Other keys, comments and the order stay as they are, also those that another window has just written.
    Raises SettingsError: a value that the setting does not take, a file that is not TOML (it stays untouched),
    a folder that cannot be written.
    """
    for name, value in changes.items():
        if name not in FIELDS:
            raise SettingsError(f"{_shown(name)} is not a setting.")
        check(name, value)
    document = _read(path)
    before = document.as_string()
    new: dict[str, Value] = {}
    for name, value in changes.items():
        if value is None:
            document.pop(name, None)
        elif name not in document:
            new[name] = value
        elif document[name] != value or type(document[name].unwrap()) is not type(value):
            document[name] = value
    if (text := _with(document.as_string(), new)) != before:
        _write(path, text)
    return load(path)[0]


def _read(path: Path) -> tomlkit.TOMLDocument:
    """For a change that keeps what it does not change. Raises SettingsError."""
    import tomlkit.exceptions  # which takes its time, and most starts change nothing

    try:
        return tomlkit.parse(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        return tomlkit.document()
    except (OSError, tomlkit.exceptions.TOMLKitError, ValueError, RecursionError) as error:
        raise SettingsError(_unreadable(path, error)) from error


def _with(text: str, new: Mapping[str, Value]) -> str:
    """A TOML text with these keys after its last ones outside tables: a comment above a table stays with the table."""
    if not new:
        return text
    import tomlkit

    added = "".join(f"{name} = {tomlkit.item(value).as_string()}\n" for name, value in new.items())
    lines = list(io.StringIO(text))
    table = next((at for at, line in enumerate(lines) if line.lstrip().startswith("[") and _whole(lines[:at])), None)
    if table is None:
        return text + "\n" * (not text.endswith("\n") and bool(text)) + added
    keys = [at for at, line in enumerate(lines[:table]) if line.strip() and not line.lstrip().startswith("#")]
    if keys:  # a text over several lines may end in a line that looks like a comment
        place = next(at for at in range(keys[-1] + 1, table + 1) if _whole(lines[:at]))
    else:
        place = table
        while place and lines[place - 1].lstrip().startswith("#"):
            place -= 1
        added += "\n"
    return "".join([*lines[:place], added, *lines[place:]])


def _whole(lines: Sequence[str]) -> bool:
    """Whether these first lines of a TOML file end outside of its lists and texts."""
    try:
        tomllib.loads("".join(lines))
    except tomllib.TOMLDecodeError:
        return False
    return True


def _unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"The settings file {path} cannot be read: {error.strerror}."
    reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
    return f"The settings file {path} is not valid TOML: {reason}."


def _write(path: Path, text: str) -> None:
    target = path.resolve()  # a link to the real file stays a link
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            temporary = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise SettingsError(f"The settings file {path} cannot be written: {error.strerror}.") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
