"""Textual, imported in less time: what it does for each class is cut short, and its command palette left out.

What comes of it acts as ever. The inner names of Textual are those of the one version that the project depends on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from runtime.quick_dataclass import compiled_later

if TYPE_CHECKING:
    from textual.binding import Binding
    from textual.dom import DOMNode

PALETTE = "textual.command"
NAMES = ("CommandListItem", "CommandPalette", "DiscoveryHit", "Hit", "Hits", "Provider", "SimpleProvider")
"""What the rest of Textual takes from its palette when it is imported."""


@contextmanager
def quick_start() -> Iterator[None]:
    """For the first import of Textual; without effect if it is there already."""
    if PALETTE in sys.modules or "textual.app" in sys.modules:
        yield
        return
    with compiled_later(), _without_palette(), _patterns_later(), _classes_at_once():
        yield


@contextmanager
def _without_palette() -> Iterator[None]:
    """The chat has a palette of its own, and Textual's takes a tenth of all imports: empty classes stand in for it.

    Later on the module can be imported as ever.
    """
    sys.modules[PALETTE] = stand_in = ModuleType(PALETTE)
    for name in NAMES:
        setattr(stand_in, name, type(name, (), {}))
    try:
        yield
    finally:
        del sys.modules[PALETTE]


@contextmanager
def _patterns_later() -> Iterator[None]:
    """The expressions of the style sheet's tokens are compiled when they are asked for: half of them never are."""
    from textual.css.tokenizer import Expect

    def init(self: Any, description: str, **tokens: str) -> None:
        self.description = f"Expected {description}"
        self.names, self.regexes = list(tokens), list(tokens.values())
        self._expect_eof, self._expect_semicolon, self._extract_text = False, True, False

    def find(self: Any, name: str) -> Any:
        if name not in ("_regex", "match", "search"):
            raise AttributeError(name)
        groups = (f"(?P<{name}>{regex})" for name, regex in zip(self.names, self.regexes, strict=True))
        self._regex = re.compile(f"({'|'.join(groups)})")
        self.match, self.search = self._regex.match, self._regex.search
        return getattr(self, name)

    standard = Expect.__init__
    Expect.__init__ = init  # type: ignore[method-assign]
    Expect.__getattr__ = find  # type: ignore[attr-defined]
    try:
        yield
    finally:
        Expect.__init__ = standard  # type: ignore[method-assign]


@contextmanager
def _classes_at_once() -> Iterator[None]:
    """What each class inherits is found once for its bases, not again for each class below them."""
    from textual.binding import BindingsMap
    from textual.dom import DOMNode
    from textual.reactive import Reactive

    reactives: dict[type, dict[str, Reactive[Any]]] = {}
    computes: dict[type, set[str]] = {}
    bindings: dict[type, dict[str, list[Binding]]] = {}

    def look(base: type) -> None:
        own = vars(base)
        reactives[base] = {name: value for name, value in own.items() if isinstance(value, Reactive)}
        computes[base] = {name.lstrip("_")[8:] for name in own if name.startswith(("_compute_", "compute_"))}
        if issubclass(base, DOMNode):
            bindings[base] = BindingsMap(own.get("BINDINGS", [])).key_to_bindings

    def init_subclass(
        cls: type[DOMNode],
        inherit_css: bool = True,
        inherit_bindings: bool = True,
        inherit_component_classes: bool = True,
    ) -> None:
        super(DOMNode, cls).__init_subclass__()
        cls._inherit_css, cls._inherit_bindings = inherit_css, inherit_bindings
        cls._inherit_component_classes = inherit_component_classes
        found: set[str] = set()
        keys: dict[str, list[Binding]] = {}
        cls._reactives = {}
        for base in reversed(cls.__mro__):
            if base not in reactives:
                look(base)
            cls._reactives.update(reactives[base])
            found |= computes[base]
            if issubclass(base, DOMNode):
                keys = {**(keys if base._inherit_bindings else {}), **bindings[base]}
        cls._computes = frozenset(found)
        cls._merged_bindings = BindingsMap.from_keys({key: [*each] for key, each in keys.items()})
        names = [base.__name__ for base in cls._css_bases(cls)]
        cls._css_type_name, cls._css_type_names = names[0], frozenset(names)

    standard = DOMNode.__dict__["__init_subclass__"]
    DOMNode.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        DOMNode.__init_subclass__ = standard  # type: ignore[method-assign]
