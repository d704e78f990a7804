"""A sandbox for chat templates: they are code from a stranger, which may neither reach out nor run or grow without end.

jinja2's own sandbox closes attributes and bounds `range`. Here every loop turn, call, filter, test, operator, slice and
output spends from a budget of work in advance what it costs at most (`runtime.template_cost`), so that nested loops,
recursive macros, texts that double and long searches end in WorkLimitError after a few seconds, with little memory
used.
"""

from __future__ import annotations

import datetime
import functools
import json
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from jinja2 import nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from runtime import template_cost as cost

# Work is counted in characters. A conversation of 10,000 messages spends about a third of it.
MAX_WORK: Final = 250_000_000
STEP: Final = 500  # one loop turn or call
QUICK: Final = 100  # one comparison or test

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}


class WorkLimitError(Exception):
    """A template wanted more work than any conversation needs."""


class RefusalError(Exception):
    """A template called `raise_exception`; the message is its own."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What a chat template may use: the functions, filters and extensions that transformers gives it.

    `start` begins a rendering. One rendering at a time.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})
    intercepted_unops = frozenset({"+", "-"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationTag], cache_size=0
        )
        self._work = 0
        del self.globals["lipsum"]
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.filters["tojson"] = _tojson
        self.filters = {name: self._metered_filter(name, function) for name, function in self.filters.items()}
        self.tests = {name: self._metered_test(name, function) for name, function in self.tests.items()}
        self.finalize = self.output

    def start(self) -> None:
        self._work = 0

    def spend(self, amount: float, step: int = STEP) -> None:
        """Raises WorkLimitError."""
        self._work += step + int(min(amount, MAX_WORK))
        if amount > cost.MAX_OPERATION or self._work > MAX_WORK:
            raise WorkLimitError

    @pass_context
    def output(self, _context: Context, value: Any) -> Any:
        self.spend(cost.size(value))
        return value

    def tilde(self, *values: Any) -> str:
        """The `~` operator."""
        self.spend(sum(map(cost.size, values)), 2 * STEP)
        return "".join(map(str, values))

    def compare(self, left: Any, *rest: Any) -> Any:
        """`left == a < b`: operators and operands in turn."""
        result: Any = True
        for name, operand in zip(rest[::2], rest[1::2], strict=True):
            right = list(operand) if isinstance(operand, Iterator) else operand
            self.spend(cost.comparison(name, left, right), QUICK)
            if not (result := _COMPARISONS[name](left, right)):
                break
            left = right
        return result

    def sliced(self, value: Any) -> Any:
        """What a part is taken of, or each element of."""
        self.spend(cost.width(value), QUICK)
        return value

    def hashed(self, key: Any) -> Any:
        """What something is looked up by."""
        self.spend(cost.size(key), QUICK)
        return key

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if isinstance(__obj, types.MethodType) and __obj.__self__ is __self:
            return __obj(*args)  # what `_Metering` has put in
        __self.spend(cost.call(__obj, [*args, *kwargs.values()]))
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.spend(cost.binop(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call_unop(self, context: Context, operator: str, arg: Any) -> Any:
        self.spend(cost.width(arg), QUICK)
        return super().call_unop(context, operator, arg)

    def _metered_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            if not cost.keeps_iterators(name):
                args = cost.drawn(args)
            self.spend(cost.filtered(name, [*args, *kwargs.values()]))
            return function(*args, **kwargs)

        return metered

    def _metered_test(self, name: str, function: Any) -> Any:
        if name in cost.FREE_TESTS:
            return function

        @functools.wraps(function)
        def metered(*args: Any) -> Any:
            self.spend(cost.tested(name, args), QUICK)
            return function(*args)

        return metered

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        tree = _Metering().visit(source)
        tree.set_environment(self)
        return super()._generate(tree, *args, **kwargs)


class _Metering(NodeTransformer):
    """Has every turn of a loop and every macro spend, and those operators that the sandbox cannot intercept."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        match node:
            case nodes.Concat():
                return _environment_call("tilde", node.nodes, node.lineno)
            case nodes.Compare():
                rest = [part for each in node.ops for part in (nodes.Const(each.op), each.expr)]
                return _environment_call("compare", [node.expr, *rest], node.lineno)
            case nodes.Getitem(arg=nodes.Slice()):
                node.node = _environment_call("sliced", [node.node], node.lineno)
            case nodes.Getitem() if not isinstance(node.arg, nodes.Const):
                node.arg = _environment_call("hashed", [node.arg], node.lineno)
            case nodes.Pair() if not isinstance(node.key, nodes.Const):
                node.key = _environment_call("hashed", [node.key], node.lineno)
            case nodes.For() | nodes.Macro() | nodes.CallBlock():
                literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
                spend = _environment_call("spend", [nodes.Const(literal + STEP)], node.lineno)
                node.body.insert(0, nodes.ExprStmt(spend, lineno=node.lineno))
                if isinstance(node, nodes.For) and node.test:  # it has turns that do not come to the body
                    node.iter = _environment_call("sliced", [node.iter], node.lineno)
        return node


class _GenerationTag(Extension):
    """`{% generation %}` marks what a trainer learns from; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment_call(name: str, args: list[Any], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None, lineno=lineno)


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
