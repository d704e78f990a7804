"""What is cut short in the import of Textual comes to the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from textual.binding import BindingsMap
from textual.css import tokenize
from textual.css.tokenizer import Expect
from textual.dom import DOMNode

import chatapp.app
from chatapp.quick_start import _classes_at_once, _patterns_later

assert chatapp.app  # all classes of the chat are there


def below(cls: type[Any]) -> Iterator[type[Any]]:
    yield cls
    for each in cls.__subclasses__():
        yield from below(each)


def found(cls: type[DOMNode]) -> dict[str, Any]:
    """What is found out for a class, by the way that is in force."""
    DOMNode.__init_subclass__.__func__(  # type: ignore[attr-defined]
        cls, cls._inherit_css, cls._inherit_bindings, cls._inherit_component_classes
    )
    own = dict(vars(cls))
    names = ["_reactives", "_computes", "_css_type_name", "_css_type_names"]
    names += ["_inherit_css", "_inherit_bindings", "_inherit_component_classes"]
    bindings = own["_merged_bindings"]
    assert isinstance(bindings, BindingsMap)
    return {name: own[name] for name in names} | {"bindings": list(bindings.key_to_bindings.items())}


def test_each_class_inherits_what_it_should() -> None:
    classes = [each for each in below(DOMNode) if each is not DOMNode]
    assert len(classes) > 60
    with _classes_at_once():
        quick = {each: found(each) for each in classes}
    assert quick == {each: found(each) for each in classes}


def test_no_class_gets_the_bindings_that_another_is_given() -> None:
    with _classes_at_once():
        first: Any = type("First", (DOMNode,), {"BINDINGS": [("a", "act", "Act")]})
        second: Any = type("Second", (first,), {})
        for each in first, second:
            found(each)
    first._merged_bindings.bind("a", "more")
    assert len(second._merged_bindings.key_to_bindings["a"]) == 1


def test_tokens_are_found_by_the_same_expressions() -> None:
    expects = [each for each in vars(tokenize).values() if isinstance(each, Expect)]
    assert len(expects) > 5
    for each in expects:
        tokens = dict(zip(each.names, each.regexes, strict=True))
        with _patterns_later():
            late = Expect("it", **tokens)
        now = Expect("it", **tokens)
        assert "_regex" not in vars(late)
        assert late.match("name: value") == now.match("name: value") or late._regex == now._regex
        assert late._regex.pattern == now._regex.pattern
        assert late.search == late._regex.search
        assert {**vars(late), "match": 0, "search": 0} == {**vars(now), "match": 0, "search": 0}
