"""How the native products read each packed type: one entry of `FORMATS` per type.

Weights lie in panels of 16 rows. A panel is its rows' blocks with their units of 4 bytes (scales that do not fill
one: 2 or 1) taken in turn from the 16 rows, so that one load has the same four weights of 16 rows. Nothing is
converted: a panel is as large as its rows were, but for a filling of at most 2 % to whole cache lines.

IQ3_S finds four weights at a time in a table: 28 G weights/s on one core of a Xeon by the processor's own gathering of
16 numbers, 7.5 one by one; from memory it could have 31.

The units lie in the order in which the products first use them. In the file's order Q6_K came from memory at 8 GB/s
where Q4_K did at 22, since the processor foresees only addresses that rise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from llvmlite import ir

from kernels.cpu.dot import lookup, spread_bits
from kernels.cpu.ir import LANES, Function, Value, f32, half, i8, i16, i32, vector
from kernels.cpu.isa import Target
from kernels.cpu.streams import Asking

_BYTES = vector(i8, 4 * LANES)
_WORDS = vector(i32, LANES)


class Block:
    """One block of a panel in a function being written; what is loaded once is not loaded again."""

    def __init__(
        self,
        f: Function,
        address: Value,
        places: Mapping[tuple[int, str], int] | None = None,
        asking: Asking | None = None,
    ) -> None:
        """`places`: where units lie; None while that is being found out. `asking`: for what is read later."""
        self.f, self.address, self._places, self._asking = f, address, places, asking
        self._loaded: dict[tuple[int, str], Value] = {}
        self.used: dict[tuple[int, str], None] = {}  # offset and kind of all units, in the order of their first use

    def forget(self) -> None:
        """Load again what is used again: cheaper than to put it aside, where registers are few."""
        self._loaded.clear()

    def _load(self, offset: int, name: str) -> Value:
        types = {"unit": _BYTES, "half": vector(half, LANES), "byte": vector(i8, LANES)}
        key = offset, name
        if key not in self._loaded:
            place = self._places[key] if self._places else 0
            if self._asking and name == "unit" and key not in self.used:
                self._asking.ask(self.address + place)
            self.used[key] = None
            self._loaded[key] = self.f.load_in_order(self.address + place, types[name])
        return self._loaded[key]

    def unit(self, offset: int) -> Value:
        """Bytes offset … offset+3 of the 16 rows: uint8 [16·4]."""
        return self._load(offset, "unit")

    def word(self, offset: int) -> Value:
        """The same as 16 little-endian numbers of 32 bits."""
        return self.unit(offset).bitcast(_WORDS)

    def half(self, offset: int) -> Value:
        """Float16 at `offset`, a field of its own, as float32 [16]."""
        return self._load(offset, "half").float()

    def half_of(self, offset: int, index: int) -> Value:
        """The float16 in the lower (0) or upper (1) half of the unit at `offset`."""
        return (self.word(offset) >> 16 * index).trunc(vector(i16, LANES)).bitcast(vector(half, LANES)).float()

    def byte(self, offset: int) -> Value:
        """A byte at `offset`, a field of its own: uint32 [16]."""
        return self._load(offset, "byte").zext(_WORDS)

    def bits(self, offset: int, shift: int, width: int) -> Value:
        """A field of each byte of a unit."""
        shifted = self.unit(offset) >> shift
        return shifted if shift + width == 8 else shifted & ((1 << width) - 1)

    def number(self, offset: int, shift: int, width: int) -> Value:
        """A field of the unit at `offset` as a number of 32 bits."""
        shifted = self.word(offset) >> shift
        return shifted if shift + width == 32 else shifted & ((1 << width) - 1)

    def plane(self, offset: int, run: int, width: int, weight: int) -> Value:
        """Weights weight … weight+3 of packed fields: runs of `run` bytes, first the lowest fields of all its bytes."""
        index, rest = divmod(weight, run * 8 // width)
        place, byte = divmod(rest, run)
        return self.bits(offset + index * run + byte, place * width, width)


class HalfBlock(Block):
    """A half of a block whose second half lies as the first does."""

    def __init__(
        self,
        f: Function,
        address: Value,
        form: Format,
        places: Mapping[tuple[int, str], int],
        half: Value,
        asking: Asking,
    ) -> None:
        """`half`: 0 or 1."""
        super().__init__(f, address, places, asking)
        self._form, self._half = form, half
        self._made: dict[int, Value] = {}

    def at(self, offset: int) -> Value:
        """Where in the whole block a unit lies."""
        assert self._places
        return self.address + self._places[offset, "unit"]

    def _load(self, offset: int, name: str) -> Value:
        if self._form.of_half and offset in self._form.of_half:
            if offset not in self._made:
                self._made[offset] = self._form.of_half[offset](self, self._half)
            return self._made[offset]
        assert self._places and self._form.halves
        if (offset, name) not in self._loaded:
            step = self._form.halves[max(first for first in self._form.halves if first <= offset)]
            place = self._places[offset, name]
            at = self.address + self._half * (self._places[offset + step, name] - place)
            if self._asking and (offset, name) not in self.used:
                self._asking.ask(at + place)
            self.used[offset, name] = None
            self._loaded[offset, name] = self.f.load_in_order(at + place, _BYTES)
        return self._loaded[offset, name]


class LaneBlock(Block):
    """One row's part of a block of a panel: every lane has the same weights."""

    def __init__(self, f: Function, address: Value, places: Mapping[tuple[int, str], int], lane: Value) -> None:
        """`lane`: the row's place among the 16."""
        super().__init__(f, address, places)
        self._lane = lane

    def _load(self, offset: int, name: str) -> Value:
        assert self._places
        types = {"unit": i32, "half": half, "byte": i8}
        key = offset, name
        if key not in self._loaded:
            place = self.address + self._places[key] + self._lane * UNITS[name]
            number = self.f.load(place, types[name]).splat()
            self._loaded[key] = number.bitcast(_BYTES) if name == "unit" else number
        return self._loaded[key]


@dataclass(frozen=True)
class Format:
    """w = d·scale·(code − zero) − dmin·minimum, in blocks and groups.

    `codes(block, weight)` gives the codes of weights weight … weight+3,
    int8 if `signed`, else uint8 below 128; `scale` and `minimum` are float32 [16] of a group, or None for 1 and 0.
    """

    block: int  # weights
    nbytes: int
    group: int  # weights that share a scale: 16 or 32
    codes: Callable[[Block, int], Value]
    d: Callable[[Block], Value]
    scale: Callable[[Block, int], Value] | None = None
    dmin: Callable[[Block], Value] | None = None
    minimum: Callable[[Block, int], Value] | None = None
    zero: int = 0
    signed: bool = False
    bits: int = 8  # of a code
    # For types whose second 128 weights lie as the first do: from which offset on, up to the next, how far apart.
    halves: Mapping[int, int] | None = None
    # What stands for other units, by offset and half.
    of_half: Mapping[int, Callable[[HalfBlock, Value], Value]] | None = None


def _plane(offset: int, run: int, width: int) -> Callable[[Block, int], Value]:
    return lambda block, weight: block.plane(offset, run, width, weight)


def _over(
    high: Callable[[Block, int], Value], low: Callable[[Block, int], Value], bits: int
) -> Callable[[Block, int], Value]:
    return lambda block, weight: low(block, weight) | (high(block, weight) << bits)


def _flags(offset: int, bits: int) -> Callable[[Block, int], Value]:
    """One bit for each of 32 weights, in order, in the unit at `offset`, as bit `bits` of the code."""
    return lambda block, weight: spread_bits(block.word(offset) >> weight) << bits


def _looked_up(low: Callable[[Block, int], Value], values: Sequence[int]) -> Callable[[Block, int], Value]:
    return lambda block, weight: lookup(block.f, low(block, weight), values)


def _half(offset: int) -> Callable[[Block], Value]:
    return lambda block: block.half(offset)


def _half_of(offset: int, index: int) -> Callable[[Block], Value]:
    return lambda block: block.half_of(offset, index)


def _six_bits(block: Block, group: int, *, minimum: bool) -> Value:
    """Scales and minima of Q4_K and Q5_K: 4 of each in the low 6 bits of two units, the others in what remains."""
    own, shift = (8 if minimum else 4), 8 * (group % 4)
    if group < 4:
        return block.number(own, shift, 6).float()
    low = block.number(12, shift + (4 if minimum else 0), 4)
    return (low | (block.number(own, shift + 6, 2) << 4)).float()


def _six_bits_of_half(own: int) -> Callable[[HalfBlock, Value], Value]:
    """The unit at `own`, 4 or 8; for the second half, one that has the last 4 numbers as that has the first 4."""

    def unit(block: HalfBlock, half: Value) -> Value:
        f, second = block.f, half.equals(1)
        # What the first half does not need is not read in it, since only addresses that rise are foreseen.
        words = [f.load_in_order(at, _WORDS) for at in (block.at(own), second.choose(block.at(12), block.at(own)))]
        low = words[0] >> (half * 2).trunc(i32).splat()
        high = words[1] >> (0 if own == 4 else 4)
        low_bits, high_bits = (
            second.choose(f.const(i32, in_second), in_first).splat()
            for in_second, in_first in ((0x30303030, 0x3F3F3F3F), (0x0F0F0F0F, 0))
        )
        return ((low & low_bits) | (high & high_bits)).bitcast(_BYTES)

    return unit


def _scale_six(block: Block, group: int) -> Value:
    return _six_bits(block, group, minimum=False)


def _minimum_six(block: Block, group: int) -> Value:
    return _six_bits(block, group, minimum=True)


def _signed_byte(value: Value) -> Value:
    """The low byte of 32-bit numbers, signed, as float32."""
    return value.trunc(vector(i8, LANES)).sext(_WORDS).float()


def _scale_q6(block: Block, group: int) -> Value:
    return _signed_byte(block.word(192 + group // 4 * 4) >> 8 * (group % 4))


def _scale_q3(block: Block, group: int) -> Value:
    low = block.number(96 + group % 8 // 4 * 4, 8 * (group % 4) + group // 8 * 4, 4)
    high = block.number(104, 8 * (group % 4) + group // 4 * 2, 2)
    return ((low | (high << 4)) - 32).float()


def _scale_q2(block: Block, group: int) -> Value:
    return block.number(group // 4 * 4, 8 * (group % 4), 4).float()


def _minimum_q2(block: Block, group: int) -> Value:
    return block.number(group // 4 * 4, 8 * (group % 4) + 4, 4).float()


def _scale_iq4(block: Block, group: int) -> Value:
    low = block.number(4, 4 * group, 4)
    high = block.number(0, 16 + 2 * group, 2)
    return ((low | (high << 4)) - 32).float()


def _scale_iq3(block: Block, group: int) -> Value:
    return (block.number(106, 4 * group, 4) * 2 + 1).float()


def _codes_iq3(block: Block, weight: int) -> Value:
    """A row of the grid, four weights, by an index of 9 bits; a sign bit for each."""
    chunk = weight // 4
    index = block.number(2 + chunk // 4 * 4, 8 * (chunk % 4), 8)
    high = block.number(66 + chunk // 32 * 4, chunk % 32, 1)
    grid = _gather(block.f, _iq3_grid(), index | (high << 8)).bitcast(_BYTES)
    negative = 0 - spread_bits(block.word(74 + weight // 32 * 4) >> weight % 32)  # 0 or −1
    return (grid ^ negative) - negative


def _gather(f: Function, numbers: Sequence[int], index: Value) -> Value:
    return f.gather(f.table("iq3_s_grid", i32, numbers), index)


def _iq3_grid() -> list[int]:
    from gguf import quants

    quants.IQ3_S.init_grid()  # type: ignore[no-untyped-call]
    assert quants.IQ3_S.grid is not None
    rows = quants.IQ3_S.grid.reshape(512, 4).astype("<u1")
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


def _exponent(block: Block) -> Value:
    """2^(e − 128) of a byte e; e = 0 and 1 give the subnormal numbers that float32 has for them."""
    e = block.byte(0)
    small = block.f.const(_WORDS, 1 << 21) << e
    return (e < 2).choose(small, (e - 1) << 23).bitcast(f32())


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled


@dataclass(frozen=True)
class Layout:
    """Where the units of a block, by offset in the file and kind, lie in a panel's block of `nbytes`."""

    places: Mapping[tuple[int, str], int]
    nbytes: int


UNITS = {"unit": 4, "half": 2, "byte": 1}


@functools.cache
def layout(name: str) -> Layout:
    form = FORMATS[name]
    nowhere = Function(ir.Module(), Target("", "", "", "plain"), "order")
    block = Block(nowhere, nowhere.number(0))
    for group in range(form.block // form.group):
        for weight in range(group * form.group, (group + 1) * form.group, 4):
            form.codes(block, weight)
        for of_group in (form.scale, form.minimum):
            if of_group:
                of_group(block, group)
    for of_block in (form.d, form.dmin):
        if of_block:
            of_block(block)
    places, end = {}, 0
    for offset, kind in sorted(block.used, key=lambda unit: unit[1] != "unit"):  # smaller ones last, for alignment
        places[offset, kind] = end
        end += LANES * UNITS[kind]
    return Layout(MappingProxyType(places), end if form.block == 32 else -(-end // 64) * 64)


def panel_bytes(name: str, columns: int) -> int:
    """Bytes of a panel of rows of `columns` weights."""
    return layout(name).nbytes * (columns // FORMATS[name].block)


FORMATS = MappingProxyType(
    {
        "Q4_0": Format(32, 18, 32, _plane(2, 16, 4), _half(0), zero=8, bits=4),
        "Q4_1": Format(32, 20, 32, _plane(4, 16, 4), _half_of(0, 0), dmin=lambda b: -b.half_of(0, 1), bits=4),
        "Q5_0": Format(32, 22, 32, _over(_flags(2, 0), _plane(6, 16, 4), 4), _half(0), zero=16, bits=5),
        "Q5_1": Format(
            32,
            24,
            32,
            _over(_flags(4, 0), _plane(8, 16, 4), 4),
            _half_of(0, 0),
            dmin=lambda b: -b.half_of(0, 1),
            bits=5,
        ),
        "Q8_0": Format(32, 34, 32, _plane(2, 32, 8), _half(0), signed=True),
        "Q2_K": Format(
            256,
            84,
            16,
            _plane(16, 32, 2),
            _half_of(80, 0),
            _scale_q2,
            _half_of(80, 1),
            _minimum_q2,
            bits=2,
            halves={0: 8, 16: 32},
        ),
        "Q3_K": Format(
            256, 110, 16, _over(_plane(0, 32, 1), _plane(32, 32, 2), 2), _half(108), _scale_q3, zero=4, bits=3
        ),
        "Q4_K": Format(
            256,
            144,
            32,
            _plane(16, 32, 4),
            _half_of(0, 0),
            _scale_six,
            _half_of(0, 1),
            _minimum_six,
            bits=4,
            halves={16: 64},
            of_half={own: _six_bits_of_half(own) for own in (4, 8)},
        ),
        "Q5_K": Format(
            256,
            176,
            32,
            _over(_plane(16, 32, 1), _plane(48, 32, 4), 4),
            _half_of(0, 0),
            _scale_six,
            _half_of(0, 1),
            _minimum_six,
            bits=5,
        ),
        "Q6_K": Format(
            256,
            210,
            16,
            _over(_plane(128, 32, 2), _plane(0, 64, 4), 4),
            _half(208),
            _scale_q6,
            zero=32,
            bits=6,
            halves={0: 64, 128: 32, 192: 8},
        ),
        "IQ4_NL": Format(32, 18, 32, _looked_up(_plane(2, 16, 4), _IQ4), _half(0), signed=True),
        "IQ4_XS": Format(
            256,
            136,
            32,
            _looked_up(_plane(8, 16, 4), _IQ4),
            _half_of(0, 0),
            _scale_iq4,
            signed=True,
        ),
        "IQ3_S": Format(256, 110, 32, _codes_iq3, _half(0), _scale_iq3, signed=True),
        "MXFP4": Format(32, 17, 32, _looked_up(_plane(1, 16, 4), _E2M1), _exponent, signed=True),
    }
)
