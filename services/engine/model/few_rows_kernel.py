"""Products of a few rows with a weight in oneDNN's order, for processors with AVX512-BF16.

A step that decodes a few requests waits for the memory that the weights come from. oneDNN asks it
for 20 to 27 GB/s of the 35 to 60 that it has; read in one run by panel, as here, it gives 30 to 45.
From about 16 rows on the arithmetic takes longer than the memory, and oneDNN is as fast.

Its order, `BA16a64b2a`: panels of 64 outputs one after the other; in a panel, for each two inputs,
the pair of weights of output 0, of output 1, …
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from services.engine.attention.numba_bfloat16 import (
    BYTES,
    FIRST,
    halves,
    inlined,
    kernel,
    narrowed,
    next_item,
    row_of,
    widened,
    words_of,
)
from services.engine.attention.numba_vectors import address_of, at_index, at_offset

PANEL = 64  # outputs
MOST_ROWS = 12
_PASS = 6  # rows: with four vectors of outputs each, their sums fill most registers
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
def _multiply(context: Any, x: Any, step: Any, panel: Any, pairs: Any, sums: Any, rows: Any) -> Any:
    """sums float32[rows, 64] = rows of x, which begin `step` bytes apart, times a panel."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    count = rows.literal_value

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _multiply_panel(builder, args[:5], count)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5, rows), build


def _multiply_panel(builder: Any, args: Any, count: int) -> None:
    x, step, panel, pairs, sums = args
    places = [(row, part) for row in range(count) for part in range(PANEL // _LANES)]
    found = {place: cgutils.alloca_once(builder, _SUMS) for place in places}
    for slot in found.values():
        builder.store(ir.Constant(_SUMS, [0.0] * _LANES), slot)
    first = [builder.add(x, builder.mul(step, ir.Constant(_LONG, row))) for row in range(count)]
    with cgutils.for_range(builder, pairs) as loop:
        weights = at_index(builder, panel, loop.index, PANEL * _PAIR)
        parts = [
            builder.load(_pointer(builder, weights, part * _LANES * _PAIR, _PAIRS), align=BYTES)
            for part in range(PANEL // _LANES)
        ]
        for row in range(count):
            pair = _in_all_lanes(builder, at_index(builder, first[row], loop.index, _PAIR))
            for part, weight in enumerate(parts):
                slot = found[row, part]
                builder.store(_add_products(builder, builder.load(slot), weight, pair), slot)
    for (row, part), slot in found.items():
        offset = (row * PANEL + part * _LANES) * _FLOAT_BYTES
        builder.store(builder.load(slot), _pointer(builder, sums, offset, _SUMS), _FLOAT_BYTES)


def _add_products(builder: Any, sums: Any, first: Any, second: Any) -> Any:
    """To each of 16 sums the products of two pairs."""
    halves_of = ir.VectorType(_BFloat(), 2 * _LANES)
    kind = ir.FunctionType(_SUMS, [_SUMS, halves_of, halves_of])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    pairs = [builder.bitcast(pair, halves_of) for pair in (first, second)]
    return builder.call(function, [sums, *pairs])


def _in_all_lanes(builder: Any, address: Any) -> Any:
    pair = builder.load(_pointer(builder, address, 0, _WORD), align=BYTES)
    empty = ir.Constant(_PAIRS, ir.Undefined)
    first = builder.insert_element(empty, pair, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(_PAIRS, [0] * _LANES))


def _pointer(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    return builder.inttoptr(at_offset(builder, address, offset), kind.as_pointer())


@inlined
def _multiply_some(x: Any, step: Any, panel: Any, pairs: Any, sums: Any, rows: Any) -> None:
    """`_multiply` for a number of rows up to `_PASS`, which it has a loop of its own for."""
    if rows == 6:
        _multiply(x, step, panel, pairs, sums, 6)
    elif rows == 5:
        _multiply(x, step, panel, pairs, sums, 5)
    elif rows == 4:
        _multiply(x, step, panel, pairs, sums, 4)
    elif rows == 3:
        _multiply(x, step, panel, pairs, sums, 3)
    elif rows == 2:
        _multiply(x, step, panel, pairs, sums, 2)
    else:
        _multiply(x, step, panel, pairs, sums, 1)


@kernel()
def few_rows(data: Any) -> None:
    """out = x Wᵀ + bias. Words: out [rows, outputs]; x [rows, width], its step from row to row; W;
    bias [outputs] or 0; rows, up to 12; outputs, a multiple of 64; width, even. Work is a panel."""
    words = words_of(data)[FIRST:]
    out, rows, outputs, width = halves(words[0]), words[5], words[6], words[7]
    step = words[2] * BYTES
    sums = np.empty(MOST_ROWS * PANEL, np.float32)
    sums_at = address_of(sums)
    passes = (rows + _PASS - 1) // _PASS
    item = next_item(data)
    while item >= 0:
        panel, first = words[3] + item * PANEL * width * BYTES, 0
        for number in range(passes):  # the second finds the panel in a cache
            count = (rows - first) // (passes - number)
            to = sums_at + first * PANEL * _FLOAT_BYTES
            _multiply_some(words[1] + first * step, step, panel, width // 2, to, count)
            first += count
        if words[4] != 0:
            bias = row_of(words[4], item, PANEL)
            for row in range(rows):
                for n in range(PANEL):
                    sums[row * PANEL + n] += widened(bias[n])
        for row in range(rows):
            for n in range(PANEL):
                out[row * outputs + item * PANEL + n] = narrowed(sums[row * PANEL + n])
        item = next_item(data)
