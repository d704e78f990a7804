"""The colours of the chat: one TOML file per theme."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.css.constants import VALID_STYLE_FLAGS
from textual.theme import Theme

DEFAULT = "ink"
_FOLDER = Path(__file__).parent

_COLOURS = (
    "primary",
    "secondary",
    "accent",
    "foreground",
    "background",
    "surface",
    "panel",
    "success",
    "warning",
    "error",
)


_ALPHA = re.compile(r" +\d+(\.\d+)?%$")
_AUTO = re.compile(r"auto( +\d+(\.\d+)?%)?")


class ThemeError(Exception):
    """A theme file cannot be used; the message is a sentence for the user."""


def load_themes() -> list[Theme]:
    """The themes that come with the program, by name."""
    names = sorted(file.name for file in _FOLDER.iterdir() if file.name.endswith(".toml"))
    return [theme for name in names if (theme := load_theme(Path(name).stem)) is not None]


def load_theme(name: str) -> Theme | None:
    """One of them; None if there is none of that name."""
    try:
        text = (_FOLDER / f"{name}.toml").read_text("utf-8") if Path(name).name == name else None
    except (OSError, ValueError):
        text = None
    return parse_theme(text, name) if text is not None else None


def remark(name: str, own: Path) -> str:
    """The comment at the beginning of a theme's file, in the folder `own` or of those that come with the program."""
    for folder in (own, _FOLDER):
        try:
            first = (folder / f"{name}.toml").read_text("utf-8-sig").lstrip().partition("\n")[0]
        except (OSError, ValueError):
            continue
        return first.lstrip("# ").strip() if first.startswith("#") else ""
    return ""


class OwnThemes:
    """The user's folder of themes, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, tuple[int, int]] = {}  # when it was written, in ns, and its size

    def look(self) -> tuple[list[Theme], list[str]]:
        """What has been written since the last time, and a sentence for each file that is no theme."""
        themes, faults = [], []
        try:
            files = sorted(self._folder.glob("*.toml"))
        except OSError:
            files = []
        for path in files:
            try:
                stat = path.stat()
                now = stat.st_mtime_ns, stat.st_size
                if self._seen.get(path) == now:
                    continue
                self._seen[path] = now
                themes.append(parse_theme(path.read_text("utf-8-sig"), path.stem))
            except ThemeError as error:
                faults.append(str(error))
            except (OSError, UnicodeDecodeError) as error:
                faults.append(f"The theme {path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}.")
        return themes, faults


def parse_theme(text: str, name: str) -> Theme:
    """A theme from its TOML: `dark`, a colour for each role, and a table `variables` of any others of Textual's.

    Raises ThemeError.
    """
    try:
        body = tomllib.loads(text)
    except ValueError as error:  # of syntax, or of a number without measure
        raise ThemeError(f"The theme {name} is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise ThemeError(f"The theme {name} is nested too deeply.") from error
    dark, variables = body.pop("dark", True), body.pop("variables", {})
    if not isinstance(dark, bool) or not isinstance(variables, dict):
        raise ThemeError(f"The theme {name} needs `dark` as true or false, and `variables` as a table.")
    if unknown := sorted(body.keys() - set(_COLOURS)):
        raise ThemeError(f"The theme {name} has no use for {', '.join(unknown)}.")
    if "primary" not in body:
        raise ThemeError(f"The theme {name} has no primary colour.")
    colours = {role: _colour(value, role, name) for role, value in body.items()}
    if "background" in colours and not Color.parse(colours["background"]).a:  # what is written has to stand on one
        raise ThemeError(f"The theme {name} has no background: that of the terminal is ansi_default.")
    return Theme(
        name,
        colours["primary"],
        colours.get("secondary"),
        colours.get("warning"),
        colours.get("error"),
        colours.get("success"),
        colours.get("accent"),
        colours.get("foreground"),
        colours.get("background"),
        colours.get("surface"),
        colours.get("panel"),
        dark=dark,
        variables=_variables(variables, name),
    )


def _variables(variables: dict[str, Any], name: str) -> dict[str, str]:
    """Each with a value of its kind: the styles of a screen with any other could not be read."""
    if not variables:
        return {}
    usual = Theme(name, "white").to_color_system().generate()
    if unknown := sorted(variables.keys() - (usual.keys() - set(_COLOURS))):
        raise ThemeError(f"The theme {name} has no use for {', '.join(unknown)} among its variables.")
    values = {key: str(value).strip() for key, value in variables.items()}
    for key, value in values.items():
        if "-style" in key:
            if not value or not set(value.split()) <= VALID_STYLE_FLAGS:
                raise ThemeError(f"The theme {name} has {value!r} as its {key}, which is no style of text.")
        elif not (usual[key].startswith("auto") and _AUTO.fullmatch(value)):
            _colour(_ALPHA.sub("", value), key, name)
    try:
        Theme(name, "white", variables=values).to_color_system().generate()
    except ColorParseError as error:  # others are mixed from some of them, which then take no percentage
        raise ThemeError(f"The theme {name} has a colour in its variables that cannot be mixed: {error}.") from error
    return values


def _colour(value: Any, role: str, name: str) -> str:
    try:
        Color.parse(str(value))
    except ColorParseError as error:
        raise ThemeError(f"The theme {name} has {value!r} as its {role}, which is no colour.") from error
    return str(value)
