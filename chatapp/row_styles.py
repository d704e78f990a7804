"""What the names of a row's spans look like: found once for all views, and again whenever the style sheet changes."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from rich.style import Style
from textual.color import Color
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.widget import Widget


@dataclass(slots=True, eq=False)
class Look:
    """A style; `veil`: its colour if what is behind shows through."""

    style: Style
    veil: Color | None


Looks = dict[str, Look]

# Textual's own component classes are looked up anew for each widget: of a screen of rows, most of what opening it took.
_found: WeakKeyDictionary[Stylesheet, tuple[list[RuleSet], Looks]] = WeakKeyDictionary()


def looks_of(widget: Widget) -> Looks:
    """Those found so far; another dictionary once the rules have changed."""
    sheet = widget.app.stylesheet
    rules = sheet.rules
    known = _found.get(sheet)
    if known is None or known[0] is not rules:
        known = _found[sheet] = rules, {}
    return known[1]


def look(widget: Widget, name: str) -> Look:
    """What the sheet says of `.rows--name` in a view of rows, wherever that is."""
    looks = looks_of(widget)
    found = looks.get(name)
    if found is None:
        part = DOMNode(classes=f"rows--{name}")
        part._attach(widget)
        widget.app.stylesheet.apply(part)
        styles = part.styles
        see_through = styles.has_rule("color") and styles.color.a < 1
        found = looks[name] = Look(styles.partial_rich_style, styles.color if see_through else None)
    return found
