"""The sides of tiles, and warps, for each kind of card: the one place where cards differ.

They are chosen so that nothing spills, see `kernels.triton.ahead`; no card has yet said which are the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """Of a product: `rows` of x, `weights` rows of the weights, `words` of each; see `matmul.some_rows`."""

    rows: int
    weights: int
    words: int
    warps: int
    turned: bool = False


@dataclass(frozen=True, slots=True)
class OneRow:
    """Of a product with one row: `many` rows of the weights, or `few` where these are below 1,024; `words` of each."""

    many: int
    few: int
    words: int


@dataclass(frozen=True, slots=True)
class Attend:
    """Of attention: `rows`, `positions` of the cache, and the `part` of a head's dimensions that scores take at a time;
    see `attend.attend`.
    """

    rows: int
    positions: int
    warps: int
    part: int = 256
    turned: bool = False


@dataclass(frozen=True, slots=True)
class Tiles:
    """`exact` is how the matrix units multiply where 16 bits are to count, as `matmul.product` knows it; `chunked`
    whether the delta rule of a prompt goes by chunks on them, or token by token.
    """

    exact: str = "bf16x3"
    one: OneRow = OneRow(8, 4, 128)
    few: Product = Product(16, 32, 32, 4)
    few_pairs: Product = Product(16, 32, 32, 4)  # gate and up in one kernel
    many: Product = Product(64, 128, 16, 8)
    many_experts: Product = Product(64, 64, 16, 8)  # of a prompt's rows by experts
    dense_turned: bool = False  # in products of many rows, types whose words have 16 fields
    attend: Attend = Attend(16, 16, 8)
    attend_many: Attend = Attend(64, 16, 8)
    step_warps: int = 8  # of a recurrent layer's step
    chunked: bool = True


_NVIDIA = Tiles()
_BLACKWELL = Tiles(dense_turned=True)  # of desktops

# What rounds to bfloat16 is some ten instructions here, so that is not left to the compiler.
_CDNA = Tiles(
    exact="split",
    few=Product(16, 64, 32, 4, turned=True),
    few_pairs=Product(16, 64, 32, 4, turned=True),
    many=Product(64, 128, 16, 8, turned=True),
    many_experts=Product(64, 64, 16, 4, turned=True),
    attend_many=Attend(32, 16, 8),
)

# 256 registers a lane, of 32, and each lane holds twice its share of a matrix unit's operands.
_RDNA = Tiles(
    exact="split",
    one=OneRow(4, 4, 32),
    few=Product(16, 64, 16, 4, turned=True),
    few_pairs=Product(16, 64, 16, 4, turned=True),
    many=Product(32, 64, 16, 8, turned=True),
    many_experts=Product(32, 64, 16, 8, turned=True),
    attend=Attend(16, 16, 8, part=32, turned=True),
    attend_many=Attend(16, 32, 8, part=32, turned=True),
    step_warps=16,
    chunked=False,
)


def tiles_of(target: str) -> Tiles:
    """Of a card by its architecture, as `ahead.TARGETS` names it; unknown ones are like those of their maker."""
    if target.startswith(("gfx10", "gfx11", "gfx12")):
        return _RDNA
    if target.startswith("sm_12"):
        return _BLACKWELL
    return _CDNA if target.startswith("gfx") else _NVIDIA


def more_registers(target: str) -> tuple[int, ...]:
    """Of a thread: what to ask for, one after the other, where a program spills. NVIDIA's assembler spills a little to
    have room for one block more, though there are registers left.
    """
    return () if target.startswith("gfx") else (160, 200, 232, 255)
