"""A small language for native functions over llvmlite: values with operators, loops as Python loops.

A function takes the words of its call, the program's step and the number of the piece that it is to do:

    f = Function(module, target, "double")
    x, y, n = f.pointer(0), f.pointer(1), f.word(2)
    for lanes, i in f.lanes(n):                   # 16 at a time, then one by one
        f.store(y + 4 * i, 2 * f.load(x + 4 * i, f32(lanes)))

A pointer is an integer of 64 bits, the address; all sizes are in bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from llvmlite.ir.instructions import LoadInstr

from kernels.cpu.isa import Target

LANES = 16  # rows of a panel and the width of float arithmetic; LLVM cuts vectors to what the processor has

i8, i16, i32, i64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
half, single = ir.HalfType(), ir.FloatType()
_POINTER = ir.PointerType()
# Sums may be reordered; NaN and infinity must survive, since they tell of a damaged file.
_FAST = ("reassoc", "contract", "nsz", "arcp")


def vector(element: ir.Type, lanes: int) -> ir.Type:
    return ir.VectorType(element, lanes)


def f32(lanes: int = LANES) -> ir.Type:
    return vector(single, lanes)


class _Ordered(LoadInstr):  # type: ignore[misc]
    def descr(self, buf: list[str]) -> None:
        text: list[str] = []
        super().descr(text)
        buf.append("".join(text).replace("load ", "load volatile ", 1))


class Value:
    """A value of the function being written; numbers beside it become constants of its type."""

    def __init__(self, f: Function, v: ir.Value) -> None:
        self.f, self.v = f, v

    @property
    def type(self) -> ir.Type:
        return self.v.type

    @property
    def element(self) -> ir.Type:
        return self.type.element if isinstance(self.type, ir.VectorType) else self.type

    @property
    def floating(self) -> bool:
        return not isinstance(self.element, ir.IntType)

    def _two(self, name: str, other: Any, *, swap: bool = False) -> Value:
        a, b = self.v, self.f.like(self, other).v
        if swap:
            a, b = b, a
        if self.floating:
            return Value(self.f, getattr(self.f.b, "f" + name)(a, b, flags=_FAST))
        name = {"div": "udiv", "rem": "urem"}.get(name, name)
        return Value(self.f, getattr(self.f.b, name)(a, b))

    def __add__(self, other: Any) -> Value:
        return self._two("add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Value:
        return self._two("sub", other)

    def __rsub__(self, other: Any) -> Value:
        return self._two("sub", other, swap=True)

    def __mul__(self, other: Any) -> Value:
        return self._two("mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Value:
        return self._two("div", other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._two("div", other, swap=True)

    __floordiv__ = __truediv__

    def __mod__(self, other: Any) -> Value:
        return self._two("rem", other)

    def __neg__(self) -> Value:
        return self.f.like(self, 0) - self

    def _bits(self, name: str, other: Any) -> Value:
        return Value(self.f, getattr(self.f.b, name)(self.v, self.f.like(self, other).v))

    def __and__(self, other: Any) -> Value:
        return self._bits("and_", other)

    def __or__(self, other: Any) -> Value:
        return self._bits("or_", other)

    def __xor__(self, other: Any) -> Value:
        return self._bits("xor", other)

    def __lshift__(self, other: Any) -> Value:
        return self if isinstance(other, int) and other == 0 else self._bits("shl", other)

    def __rshift__(self, other: Any) -> Value:
        """Shifts in zeros."""
        return self if isinstance(other, int) and other == 0 else self._bits("lshr", other)

    def shifted_with_sign(self, bits: int) -> Value:
        """To the right; shifts in what the sign is."""
        return Value(self.f, self.f.b.ashr(self.v, self.f.like(self, bits).v))

    def _compare(self, sign: str, other: Any) -> Value:
        other = self.f.like(self, other).v
        if self.floating:
            return Value(self.f, self.f.b.fcmp_ordered(sign, self.v, other))
        return Value(self.f, self.f.b.icmp_signed(sign, self.v, other))

    def __lt__(self, other: Any) -> Value:
        return self._compare("<", other)

    def __ge__(self, other: Any) -> Value:
        return self._compare(">=", other)

    def __gt__(self, other: Any) -> Value:
        return self._compare(">", other)

    def equals(self, other: Any) -> Value:
        return self._compare("==", other)

    def choose(self, yes: Value, no: Any) -> Value:
        return Value(self.f, self.f.b.select(self.v, yes.v, self.f.like(yes, no).v))

    def smaller(self, other: Any) -> Value:
        return self._compare("<", other).choose(self, other)

    def larger(self, other: Any) -> Value:
        return self._compare(">", other).choose(self, other)

    def bitcast(self, type_: ir.Type) -> Value:
        return Value(self.f, self.f.b.bitcast(self.v, type_))

    def zext(self, type_: ir.Type) -> Value:
        return Value(self.f, self.f.b.zext(self.v, type_))

    def sext(self, type_: ir.Type) -> Value:
        return Value(self.f, self.f.b.sext(self.v, type_))

    def trunc(self, type_: ir.Type) -> Value:
        return Value(self.f, self.f.b.trunc(self.v, type_))

    def float(self) -> Value:
        """Signed integers or halves as float32."""
        lanes = self.type.count if isinstance(self.type, ir.VectorType) else 0
        type_ = vector(single, lanes) if lanes else single
        if self.floating and self.f.target.dot == "plain":
            return self._float_of_half(vector(i32, lanes) if lanes else i32, type_)
        convert = self.f.b.fpext if self.floating else self.f.b.sitofp
        return Value(self.f, convert(self.v, type_))

    def _float_of_half(self, whole: ir.Type, type_: ir.Type) -> Value:
        """By arithmetic, where the processor has no conversion."""
        bits = self.bitcast(vector(i16, whole.count) if isinstance(whole, ir.VectorType) else i16).zext(whole)
        scaled = ((bits & 0x7FFF) << 13).bitcast(type_) * 2.0**112  # the exponent's bias is 127 in place of 15
        finite = scaled.bitcast(whole)
        special = (bits & 0x7C00).equals(0x7C00).choose(finite | 0x7F800000, finite)
        return (special | ((bits & 0x8000) << 16)).bitcast(type_)

    def splat(self, lanes: int = LANES) -> Value:
        type_ = vector(self.type, lanes)
        one = self.f.b.insert_element(ir.Constant(type_, ir.Undefined), self.v, ir.Constant(i32, 0))
        zeros = ir.Constant(vector(i32, lanes), [0] * lanes)
        return Value(self.f, self.f.b.shuffle_vector(one, ir.Constant(type_, ir.Undefined), zeros))

    def pick(self, indices: Sequence[int]) -> Value:
        """The lanes of these indices."""
        mask = ir.Constant(vector(i32, len(indices)), list(indices))
        return Value(self.f, self.f.b.shuffle_vector(self.v, ir.Constant(self.type, ir.Undefined), mask))

    def mix(self, other: Value, indices: Sequence[int]) -> Value:
        """The lanes of these indices, those of `other` counted on from this one's."""
        mask = ir.Constant(vector(i32, len(indices)), list(indices))
        return Value(self.f, self.f.b.shuffle_vector(self.v, other.v, mask))

    def join(self, other: Value) -> Value:
        return self.mix(other, range(2 * self.type.count))

    def lane(self, index: int) -> Value:
        return Value(self.f, self.f.b.extract_element(self.v, ir.Constant(i32, index)))

    def sum(self) -> Value:
        """Over the lanes."""
        if self.floating:
            zero = ir.Constant(single, -0.0)
            name = f"llvm.vector.reduce.fadd.v{self.type.count}f32"
            callee = self.f.external(name, single, (single, self.type))
            return Value(self.f, self.f.b.call(callee, [zero, self.v], fastmath=_FAST))
        return self.f.call(f"llvm.vector.reduce.add.v{self.type.count}i{self.element.width}", self.element, self)

    def max(self) -> Value:
        return self.f.call(f"llvm.vector.reduce.fmax.v{self.type.count}f32", single, self)


class Variable:
    """A value that changes: a place on the stack, which LLVM turns into a register."""

    def __init__(self, f: Function, start: Value) -> None:
        self._f, self._type = f, start.type
        with f.b.goto_entry_block():
            self._place = f.b.alloca(start.type)
        self.value = start

    @property
    def value(self) -> Value:
        return Value(self._f, self._f.b.load(self._place, typ=self._type))

    @value.setter
    def value(self, new: Value) -> None:
        self._f.b.store(new.v, self._place)


class Function:
    """A native function being written: `void(words, piece)`, or with other `parameters` and a result."""

    def __init__(
        self,
        module: ir.Module,
        target: Target,
        name: str,
        parameters: Sequence[ir.Type] = (i64, i64),
        result: ir.Type | None = None,
    ) -> None:
        self.module, self.target, self.name = module, target, name
        self.function = ir.Function(module, ir.FunctionType(result or ir.VoidType(), list(parameters)), name)
        self.b = ir.IRBuilder(self.function.append_basic_block())
        self.parameters = [Value(self, argument) for argument in self.function.args]

    def finish(self, result: Value | None = None) -> None:
        if result is None:
            self.b.ret_void()
        else:
            self.b.ret(result.v)

    # The call's words

    def word(self, index: int) -> Value:
        return self.load(self.parameters[0] + 8 * index, i64)

    def real(self, index: int) -> Value:
        """A word that holds a float32."""
        return self.load(self.parameters[0] + 8 * index, single)

    @property
    def piece(self) -> Value:
        return self.parameters[1]

    # Constants and memory

    def const(self, type_: ir.Type, number: float) -> Value:
        if isinstance(type_, ir.VectorType):
            return Value(self, ir.Constant(type_, [ir.Constant(type_.element, number)] * type_.count))
        if isinstance(type_, ir.FloatType):
            number = struct.unpack("f", struct.pack("f", number))[0]
        return Value(self, ir.Constant(type_, number))

    def number(self, number: int) -> Value:
        return self.const(i64, number)

    def like(self, value: Value, other: Any) -> Value:
        return other if isinstance(other, Value) else self.const(value.type, other)

    def zero(self, type_: ir.Type) -> Value:
        return Value(self, ir.Constant(type_, None))

    def variable(self, start: Value) -> Variable:
        return Variable(self, start)

    def _pointer(self, address: Value) -> ir.Value:
        return self.b.inttoptr(address.v, _POINTER)

    def load(self, address: Value, type_: ir.Type, align: int = 1) -> Value:
        return Value(self, self.b.load(self._pointer(address), align=align, typ=type_))

    def gather(self, table: Value, index: Value) -> Value:
        """Numbers of 32 bits at these places of a table: [16] → [16]."""
        lanes = index.type.count
        addresses = index.zext(vector(i64, lanes)) * 4 + table.splat(lanes)
        places = Value(self, self.b.inttoptr(addresses.v, vector(_POINTER, lanes)))
        all_, none = self.const(vector(ir.IntType(1), lanes), 1), self.zero(index.type)
        name = f"llvm.masked.gather.v{lanes}i32.v{lanes}p0"
        return self.call(name, index.type, places, self.const(i32, 4), all_, none)

    def load_in_order(self, address: Value, type_: ir.Type) -> Value:
        """A load that keeps its place among others of this kind."""
        load = _Ordered(self.b.block, self._pointer(address), typ=type_)
        load.align = 1
        self.b._insert(load)
        return Value(self, load)

    def pinned(self, values: Sequence[Value]) -> list[Value]:
        """The same values, at this place: what they are made of is done before it, and what is loaded after it, after.

        LLVM else makes sums one after the other that were to grow side by side, and puts aside what each needs.
        """
        types = [value.type for value in values]
        outs, ins = ",".join(["=x"] * len(types)), ",".join(map(str, range(len(types))))
        made = self.b.asm(
            ir.FunctionType(ir.LiteralStructType(types), types), "", f"{outs},{ins}", [v.v for v in values], True
        )
        return [Value(self, self.b.extract_value(made, i)) for i in range(len(types))]

    def store(self, address: Value, value: Value, align: int = 1) -> None:
        self.b.store(value.v, self._pointer(address), align=align)

    def stream(self, address: Value, value: Value) -> None:
        """A store past the caches, of a line or half of one: what lies there need not be read first."""
        nbytes = value.type.count * value.element.width // 8 if isinstance(value.element, ir.IntType) else 4 * LANES
        store = self.b.store(value.v, self._pointer(address), align=nbytes)
        store.set_metadata("nontemporal", self.module.add_metadata([self.const(i32, 1).v]))

    def prefetch(self, address: Value, *, near: bool = False) -> None:
        """Ask for a cache line, into the first cache (`near`) or the second; the address may lie anywhere."""
        callee = self.external("llvm.prefetch.p0", ir.VoidType(), (_POINTER, i32, i32, i32))
        read, locality, data = (ir.Constant(i32, number) for number in (0, 3 if near else 2, 1))
        self.b.call(callee, [self._pointer(address), read, locality, data])

    def scratch(self, nbytes: int) -> Value:
        """The address of memory that lives as long as the call."""
        with self.b.goto_entry_block():
            place = self.b.alloca(ir.ArrayType(i8, nbytes))
            place.align = 64
            return Value(self, self.b.ptrtoint(place, i64))

    def table(self, name: str, element: ir.IntType, numbers: Sequence[int]) -> Value:
        """The address of constants."""
        type_ = ir.ArrayType(element, len(numbers))
        constant = self.module.globals.get(name)
        if constant is None:
            constant = ir.GlobalVariable(self.module, type_, name)
            constant.initializer = ir.Constant(type_, list(numbers))
            constant.global_constant, constant.linkage, constant.align = True, "internal", 64
        return Value(self, self.b.ptrtoint(constant, i64))

    # Calls

    def external(self, name: str, result: ir.Type, parameters: Sequence[ir.Type]) -> ir.Function:
        known = self.module.globals.get(name)
        return known or ir.Function(self.module, ir.FunctionType(result, list(parameters)), name)

    def call(self, name: str, result: ir.Type, *arguments: Value) -> Value:
        callee = self.external(name, result, [argument.type for argument in arguments])
        return Value(self, self.b.call(callee, [argument.v for argument in arguments]))

    # Flow

    def range(self, start: Value | int, stop: Value | int, step: int = 1) -> Iterator[Value]:
        """A loop: what is written while this yields is its body."""
        start = start if isinstance(start, Value) else self.number(start)
        stop = self.like(start, stop)
        head, body, after = (self.function.append_basic_block() for _ in range(3))
        counter = self.variable(start)
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch((counter.value < stop).v, body, after)
        self.b.position_at_end(body)
        index = counter.value
        yield index
        counter.value = index + step
        self.b.branch(head)
        self.b.position_at_end(after)

    def lanes(self, count: Value | int) -> Iterator[tuple[int, Value]]:
        """0 … count−1 as one loop of `LANES` at a time and one for the rest: yields lanes and index in each."""
        count = count if isinstance(count, Value) else self.number(count)
        whole = count - count % LANES
        for i in self.range(0, whole, LANES):
            yield LANES, i
        for i in self.range(whole, count):
            yield 1, i

    def sum_over(self, count: Value | int, term: Callable[[int, Value], Value]) -> Value:
        """Σ term(lanes, index) over 0 … count−1, `term` giving vectors of that many lanes."""
        sums = {lanes: self.variable(self.zero(f32(lanes))) for lanes in (LANES, 1)}
        for lanes, i in self.lanes(count):
            sums[lanes].value = sums[lanes].value + term(lanes, i)
        return sums[LANES].value.sum() + sums[1].value.lane(0)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.b.if_then(condition.v):
            yield

    # Functions of numbers

    def exp(self, x: Value) -> Value:
        """e^x of float32 vectors to 2e-7: 2^n times a polynomial on ±ln 2 / 2. NaN stays NaN."""
        lanes = x.type.count
        x = (x > 88.0).choose(self.like(x, 88.0), x)
        x = (x < -87.0).choose(self.like(x, -87.0), x)
        n = self.call(f"llvm.rint.v{lanes}f32", x.type, x * 1.4426950408889634)
        r = (x - n * 0.693359375) - n * -2.12194440e-4  # ln 2 in two parts
        p = self.like(x, 1.9875691500e-4)
        for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = p * r + c
        p = p * (r * r) + r + 1.0
        finite = n > -200.0  # false for NaN, whose conversion to an integer would be undefined
        whole = Value(self, self.b.fptosi(finite.choose(n, 0.0).v, vector(i32, lanes)))
        return p * ((whole + 127) << 23).bitcast(x.type)

    def sigmoid(self, x: Value) -> Value:
        return 1.0 / (self.exp(-x) + 1.0)

    def silu(self, x: Value) -> Value:
        return x * self.sigmoid(x)
