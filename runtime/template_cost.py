"""What the operations of a chat template cost at most, in characters, told from their arguments before they are done.

A unit is about 10 ns of work. What grows faster than its arguments, or is slow with each character, is counted so.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, Final

from jinja2.runtime import Context
from jinja2.utils import Namespace

MAX_OPERATION: Final = 5_000_000  # by one call, filter or operator
ITEM: Final = 10  # one element of a list
_DEEPEST: Final = 200  # lists in lists: far deeper ones end the process where they are hashed
_NEEDLE: Final = 100  # characters; longer ones are not sought at each place anew

# Filters that look at one element or none, those that take a list element by element, and those that compare or hash
# the elements. The others may turn all into text.
_FREE_FILTERS: Final = frozenset({"attr", "count", "d", "default", "first", "items", "last", "length", "random"})
_BY_ELEMENT: Final = frozenset(
    {"batch", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice"}
)
_BY_VALUE: Final = frozenset({"dictsort", "groupby", "max", "min", "sort", "unique"})
_SLOW: Final = {"pprint": 200, "title": 30, "tojson": 10, "urlize": 50, "wordcount": 10, "wordwrap": 200, "xmlattr": 10}
_QUADRATIC: Final = frozenset({"striptags", "urlize"})
_LIST_WORK: Final = 5  # times that of looking at each element

# Tests that look no deeper than at their argument's type.
FREE_TESTS: Final = frozenset(
    {
        *("boolean", "callable", "defined", "escaped", "false", "filter", "float", "integer", "iterable", "mapping"),
        *("none", "number", "sameas", "sequence", "string", "test", "true", "undefined"),
    }
)


def size(value: object) -> int:
    """Characters of `value` as text, about; counting stops beyond MAX_OPERATION, which what is too deep has too."""
    total = 0
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        below: list[object] = []
        for item in level:
            total += ITEM
            kind = type(item)
            if kind is list or kind is tuple:  # known at once, for there may be many
                below += item  # type: ignore[arg-type]
            elif isinstance(item, str | bytes):
                total += len(item)
            elif isinstance(item, int):
                total += item.bit_length() >> 3
            elif isinstance(item, Namespace):
                total += MAX_OPERATION  # shows its values, which cannot be counted
            elif type(item) is Context:
                pass
            elif isinstance(item, Mapping):
                below += [*item.keys(), *item.values()]
            elif isinstance(item, Collection) and not isinstance(item, range):
                below += item
            if total + ITEM * len(below) > MAX_OPERATION:
                return total + ITEM * len(below)
        if not below:
            return total
        level = below
    return MAX_OPERATION + 1


def width(value: object) -> int:
    """Characters, or elements without what is in them."""
    if isinstance(value, int):
        return value.bit_length() >> 3
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Context) or not isinstance(value, Collection):
        return ITEM
    return ITEM * len(value)


def comparison(operator: str, left: object, right: object) -> int:
    if operator not in ("in", "notin"):
        return size(left) + size(right)
    if isinstance(right, str):
        return len(right) * min(len(left), _NEEDLE) if isinstance(left, str) else ITEM
    if isinstance(right, Mapping | KeysView):
        return size(left)
    return size(left) + (ITEM * len(right) if isinstance(right, range) else size(right))


def binop(operator: str, left: Any, right: Any) -> float:
    if isinstance(left, int) and isinstance(right, int):
        one, other = left.bit_length() or 1, right.bit_length()
        if operator == "**":
            return (one * abs(right)) ** 2 / 100
        return one + other if operator in ("+", "-") else one * other
    if operator == "+":
        return sum(len(side) for side in (left, right) if isinstance(side, str | list | tuple))
    if operator == "*":
        return _product([left, right])
    if operator == "%" and isinstance(left, str):
        return math.inf if "*" in left else _product([left, right]) + _widths(left)
    return 0


def call(function: Callable[..., Any], args: Sequence[Any]) -> int:
    method = getattr(function, "__wrapped__", function)  # str.format comes wrapped
    if isinstance(method, types.BuiltinMethodType | types.MethodType):
        owner, name = method.__self__, method.__name__
        # a text that is marked as safe has methods of its own
        if isinstance(method, types.MethodType) and not isinstance(owner, str):
            return sum(map(size, args))
        widths = _widths(owner) if name in ("format", "format_map") else 0
        return _product([owner, *args]) * (width(owner) if name in _QUADRATIC else 1) + widths
    return sum(map(width, args))


def filtered(name: str, args: Sequence[Any]) -> int:
    if name in _FREE_FILTERS:
        return 0
    if name in _BY_ELEMENT:
        numbers = math.prod(_factor(arg) for arg in args if isinstance(arg, int))
        return numbers + _LIST_WORK * sum(width(arg) for arg in args if not isinstance(arg, int))
    if name in _BY_VALUE:
        return _LIST_WORK * sum(map(size, args))
    cost = _product(args) * _SLOW.get(name, 1)
    if name in _QUADRATIC:
        cost *= max(map(width, args), default=1)
    if name == "round":
        cost += sum(arg * arg for arg in args if isinstance(arg, int))  # 10 to the power of it
    return cost + (_widths(args[0]) if name == "format" else 0)


def tested(name: str, args: Sequence[Any]) -> float:
    if name == "divisibleby":
        return binop("%", args[0], args[-1])
    if name == "in":
        return comparison("in", args[0], args[-1])
    return sum(map(size, args))


def drawn(args: Iterable[Any]) -> tuple[Any, ...]:
    """With lists in place of what would make their elements one by one, so that they can be counted."""
    return tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)


def keeps_iterators(name: str) -> bool:
    """Whether a filter takes no more elements than it must."""
    return name in _FREE_FILTERS


def _factor(value: object) -> int:
    return max(1, abs(value) if isinstance(value, int) else len(value) if isinstance(value, str) else size(value))


def _product(values: Iterable[object]) -> int:
    """What a call can make of its arguments at most: `replace` and `center` multiply."""
    return math.prod(map(_factor, values))


def _widths(value: object) -> int:
    """The field widths in a format string."""
    return sum(int(digits[:9]) for digits in re.findall(r"\d+", value)) if isinstance(value, str) else 0
