"""Products of a few rows with panels of weights, for processors with AVX512-BF16, in kernels that
Numba compiles.

A panel holds 64 outputs: for each two inputs, the pair of weights of output 0, of output 1, … An
instruction adds, to each of 16 sums in float32, the products of two such pairs of bfloat16.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from services.engine.attention.numba_bfloat16 import BYTES, inlined
from services.engine.attention.numba_vectors import at_index, at_offset, in_all_lanes

PANEL = 64  # outputs
MOST_ROWS = 6  # with four vectors of outputs each, their sums fill most registers
_LANES = 16
_PAIR, _FLOAT_BYTES = 2 * BYTES, 4
_LONG, _WORD, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_SUMS, _PAIRS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_WORD, _LANES)


class _BFloat(ir.Type):
    """LLVM's type, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


@intrinsic(prefer_literal=True)
def _multiply(
    context: Any, x: Any, step: Any, panel: Any, pairs: Any, sums: Any, kept: Any, rows: Any
) -> Any:
    """See `multiply_rows`."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    count = rows.literal_value

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _multiply_panel(builder, args[:6], count)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, rows), build


def _multiply_panel(builder: Any, args: Any, count: int) -> None:
    x, step, panel, pairs, sums, kept = args
    found = _begin(builder, sums, kept, count)
    first = [builder.add(x, builder.mul(step, ir.Constant(_LONG, row))) for row in range(count)]
    with cgutils.for_range(builder, pairs) as loop:
        weights = at_index(builder, panel, loop.index, PANEL * _PAIR)
        parts = [
            builder.load(_pointer(builder, weights, part * _LANES * _PAIR, _PAIRS), align=BYTES)
            for part in range(PANEL // _LANES)
        ]
        for row in range(count):
            place = at_index(builder, first[row], loop.index, _PAIR)
            # One pair of a row meets the pairs of 16 outputs, so it is needed in all lanes.
            pair = in_all_lanes(
                builder, builder.load(_pointer(builder, place, 0, _WORD), align=BYTES)
            )
            for part, weight in enumerate(parts):
                slot = found[row, part]
                builder.store(_add_products(builder, builder.load(slot), weight, pair), slot)
    for (row, part), slot in found.items():
        builder.store(builder.load(slot), _place(builder, sums, row, part), _FLOAT_BYTES)


def _begin(builder: Any, sums: Any, kept: Any, count: int) -> dict[tuple[int, int], Any]:
    """What is in the sums times what each row keeps of it, in registers. Nothing where it keeps
    nothing: that may not be a number."""
    found = {}
    for row in range(count):
        factor = builder.load(
            _pointer(builder, kept, row * _FLOAT_BYTES, _FLOAT), align=_FLOAT_BYTES
        )
        nothing = builder.fcmp_ordered("==", factor, ir.Constant(_FLOAT, 0.0))
        factors = in_all_lanes(builder, factor)
        for part in range(PANEL // _LANES):
            before = builder.load(_place(builder, sums, row, part), align=_FLOAT_BYTES)
            zero = ir.Constant(_SUMS, [0.0] * _LANES)
            found[row, part] = cgutils.alloca_once(builder, _SUMS)
            begun = builder.select(nothing, zero, builder.fmul(before, factors))
            builder.store(begun, found[row, part])
    return found


def _place(builder: Any, sums: Any, row: int, part: int) -> Any:
    return _pointer(builder, sums, (row * PANEL + part * _LANES) * _FLOAT_BYTES, _SUMS)


def _add_products(builder: Any, sums: Any, first: Any, second: Any) -> Any:
    """To each of 16 sums the products of two pairs."""
    halves_of = ir.VectorType(_BFloat(), 2 * _LANES)
    kind = ir.FunctionType(_SUMS, [_SUMS, halves_of, halves_of])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    pairs = [builder.bitcast(pair, halves_of) for pair in (first, second)]
    return builder.call(function, [sums, *pairs])


def _pointer(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    return builder.inttoptr(at_offset(builder, address, offset), kind.as_pointer())


@inlined
def multiply_rows(
    x: Any, step: Any, panel: Any, pairs: Any, sums: Any, kept: Any, rows: Any
) -> None:
    """sums[row] = sums[row] * kept[row] + x[row] · panel, for 1 to 6 rows, with a loop for each.

    Addresses of x, bfloat16[rows, 2 * pairs], whose rows begin `step` bytes apart; of a panel; of
    sums float32[rows, 64]; of kept float32[rows], what they keep, where 0 forgets even NaN.
    """
    if rows == 6:
        _multiply(x, step, panel, pairs, sums, kept, 6)
    elif rows == 5:
        _multiply(x, step, panel, pairs, sums, kept, 5)
    elif rows == 4:
        _multiply(x, step, panel, pairs, sums, kept, 4)
    elif rows == 3:
        _multiply(x, step, panel, pairs, sums, kept, 3)
    elif rows == 2:
        _multiply(x, step, panel, pairs, sums, kept, 2)
    else:
        _multiply(x, step, panel, pairs, sums, kept, 1)
