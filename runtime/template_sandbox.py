"""A sandbox for chat templates: they are code from a stranger, which may neither reach out nor run or grow without end.

jinja2's own sandbox closes attributes and bounds `range`. Here every loop turn, call, filter, operator and output
spends from a budget of work in advance, so that nested loops, recursive macros and texts that double end in
WorkLimitError after a second or two, with little memory used.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from jinja2 import nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# Work is counted in characters. A conversation of 10,000 messages spends about a third of it.
MAX_WORK: Final = 250_000_000
MAX_OPERATION: Final = 5_000_000  # by one call, filter or operator
STEP: Final = 500  # one loop turn or call
ITEM: Final = 10  # one element of a list

# Filters that take a list as it is; the others may turn it into text.
STRUCTURAL: Final = frozenset(
    {
        *("attr", "batch", "count", "d", "default", "dictsort", "first", "groupby", "items", "last", "length", "list"),
        *("map", "max", "min", "random", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "sort"),
        "unique",
    }
)


class WorkLimitError(Exception):
    """A template wanted more work than any conversation needs."""


class RefusalError(Exception):
    """A template called `raise_exception`; the message is its own."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What a chat template may use: the functions, filters and extensions that transformers gives it.

    `start` begins a rendering. One rendering at a time.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationTag], cache_size=0
        )
        self._work = 0
        del self.globals["lipsum"]
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.filters["tojson"] = _tojson
        self.filters = {name: self._metered(name, function) for name, function in self.filters.items()}
        self.finalize = self.output

    def start(self) -> None:
        self._work = 0

    def spend(self, amount: float) -> None:
        """Raises WorkLimitError."""
        self._work += STEP + int(min(amount, MAX_WORK))
        if amount > MAX_OPERATION or self._work > MAX_WORK:
            raise WorkLimitError

    @pass_context
    def output(self, _context: Context, value: Any) -> Any:
        self.spend(_size(value))
        return value

    def tilde(self, *values: Any) -> str:
        """The `~` operator."""
        self.spend(sum(map(_size, values)))
        return "".join(map(str, values))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        method = getattr(__obj, "__wrapped__", __obj)  # str.format comes wrapped
        if isinstance(method, types.BuiltinMethodType):
            owner = method.__self__
            widths = _widths(owner) if method.__name__ in ("format", "format_map") else 0
            __self.spend(_product([owner, *args, *kwargs.values()]) + widths)
        else:
            __self.spend(0)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.spend(_binop_cost(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            if name not in STRUCTURAL:
                args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
                widths = _widths(args[0]) if name == "format" else 0
                self.spend(_product([*args, *kwargs.values()]) + widths)
            else:
                self.spend(math.prod(_factor(arg) for arg in args if isinstance(arg, int)))
            return function(*args, **kwargs)

        return metered

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        tree = _Metering().visit(source)
        tree.set_environment(self)
        return super()._generate(tree, *args, **kwargs)


class _Metering(NodeTransformer):
    """Has every turn of a loop and every macro spend, and `~` too, which the sandbox cannot intercept."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.Concat):
            return _environment_call("tilde", node.nodes, node.lineno)
        if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            spend = _environment_call("spend", [nodes.Const(literal)], node.lineno)
            node.body.insert(0, nodes.ExprStmt(spend, lineno=node.lineno))
        return node


class _GenerationTag(Extension):
    """`{% generation %}` marks what a trainer learns from; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment_call(name: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None, lineno=lineno)


def _size(value: object) -> int:
    """Characters of `value` as text, about; counting stops beyond MAX_OPERATION."""
    total = 0
    stack: list[object] = [value]
    while stack and total <= MAX_OPERATION:
        item = stack.pop()
        total += ITEM
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, Namespace):
            total += MAX_OPERATION  # shows its values, which cannot be counted
        elif type(item) is Context:
            pass
        elif isinstance(item, Mapping):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, Collection) and not isinstance(item, range):
            stack += item
    return total


def _factor(value: object) -> int:
    return max(1, abs(value) if isinstance(value, int) else len(value) if isinstance(value, str) else _size(value))


def _product(values: Iterable[object]) -> int:
    """What a call can make of its arguments at most: `replace` and `center` multiply."""
    return math.prod(map(_factor, values))


def _widths(value: object) -> int:
    """The field widths in a format string."""
    return sum(int(digits[:9]) for digits in re.findall(r"\d+", value)) if isinstance(value, str) else 0


def _binop_cost(operator: str, left: Any, right: Any) -> float:
    if isinstance(left, int) and isinstance(right, int):
        return (left.bit_length() or 1) * (abs(right) if operator == "**" else right.bit_length())
    if operator == "+":
        return sum(len(side) for side in (left, right) if isinstance(side, str | list | tuple))
    if operator == "*":
        return _product([left, right])
    if operator == "%" and isinstance(left, str):
        return math.inf if "*" in left else _product([left, right]) + _widths(left)
    return 0


def _raise_exception(message: object) -> None:
    raise RefusalError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
