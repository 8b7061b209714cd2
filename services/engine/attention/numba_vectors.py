"""Vector code of kernels that Numba compiles, where its own loops become too slow: sums over rows
that stay in registers, and many sums of lanes added up at once.

Addresses are integers. Every size is a constant where it is called; lanes: see `lanes_of`.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_LONG, _WORD, _HALF, _FLOAT = ir.IntType(64), ir.IntType(32), ir.IntType(16), ir.FloatType()
_FAST = ("fast",)  # sums in any order, products and sums at once
_MOST_LANES = 16  # float32 of the widest registers
_REGISTERS = 16  # sums at once: half of those of AVX-512
_BITS = 16  # of a bfloat16
_FLOAT_BYTES, _HALF_BYTES = 4, 2
_constant = intrinsic(prefer_literal=True)


def lanes_of(*sizes: int) -> int:
    """How many float32 are computed at once so that all sizes are a multiple of them."""
    return math.gcd(_MOST_LANES, *sizes)


@_constant
def dot_rows(
    context: Any, query: Any, rows: Any, scores: Any, heads: Any, dim: Any, count: Any, lanes: Any
) -> Any:
    """scores[h][t] = Σ query[h][d] rows[t][d]; query [heads, dim], rows [count, dim] and scores
    [heads, count] are float32."""
    sizes = _values(heads, dim, count, lanes)
    if sizes is None:
        return None

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _dot_rows(builder, *args[:3], *sizes)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, heads, dim, count, lanes), build


def _dot_rows(
    builder: Any, query: Any, rows: Any, scores: Any,
    heads: int, dim: int, count: int, lanes: int,
) -> None:  # fmt: skip
    with cgutils.for_range(builder, ir.Constant(_LONG, heads)) as head:
        query = at_index(builder, query, head.index, dim * _FLOAT_BYTES)
        scores = at_index(builder, scores, head.index, count * _FLOAT_BYTES)
        with cgutils.for_range(builder, ir.Constant(_LONG, count // lanes)) as part:
            first = at_index(builder, rows, part.index, lanes * dim * _FLOAT_BYTES)
            sums = [
                _dot(builder, query, at_offset(builder, first, t * dim * _FLOAT_BYTES), dim, lanes)
                for t in range(lanes)
            ]
            to = at_index(builder, scores, part.index, lanes * _FLOAT_BYTES)
            _store(builder, _added_up(builder, sums, lanes), to)


def _dot(builder: Any, query: Any, row: Any, dim: int, lanes: int) -> Any:
    """The product of two rows, whose lanes are still to be added up."""
    total = None
    for at in range(0, dim * _FLOAT_BYTES, lanes * _FLOAT_BYTES):
        factors = (_floats(builder, at_offset(builder, row, at), lanes) for row in (query, row))
        product = builder.fmul(*factors, flags=_FAST)
        total = product if total is None else builder.fadd(total, product, flags=_FAST)
    return total


def _added_up(builder: Any, sums: list[Any], lanes: int) -> Any:
    """A vector whose lane t is what the lanes of sums[t] make together. Half of the vectors remain
    after each step, with twice as many sums in each."""
    width = lanes
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [_joined(builder, sums[t], sums[t + half], lanes, width) for t in range(half)]
        width //= 2
    return sums[0]


def _joined(builder: Any, first: Any, second: Any, lanes: int, width: int) -> Any:
    """Of each `width` lanes the halves added up: of the first vector, then of the second."""
    lower = [
        start + side * lanes + lane
        for start in range(0, lanes, width)
        for side in (0, 1)
        for lane in range(width // 2)
    ]
    parts = (
        builder.shuffle_vector(first, second, _indices([lane + ahead for lane in lower]))
        for ahead in (0, width // 2)
    )
    return builder.fadd(*parts, flags=_FAST)


@_constant
def add_rows(
    context: Any, weights: Any, kept: Any, rows: Any, step: Any, begin: Any, end: Any, found: Any,
    heads: Any, dim: Any, count: Any, lanes: Any, narrow: Any,
) -> Any:  # fmt: skip
    """found[h][d] = found[h][d] kept[h] + Σ weights[h][t] rows[t][d] over begin <= t < end.

    weights [heads, count], kept [heads] and found [heads, dim] are float32; rows begin `step` bytes
    apart and are bfloat16 if `narrow` is 1, float32 if it is 0.
    """
    sizes = _values(heads, dim, count, lanes, narrow)
    if sizes is None:
        return None

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of_heads, width, _, at_once, _ = sizes
        together = max(1, _REGISTERS // of_heads) * at_once
        for first in range(0, width, together):
            columns = range(first, min(width, first + together), at_once)
            _add_columns(builder, args, columns, *sizes)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7, heads, dim, count, lanes, narrow), build


def _add_columns(
    builder: Any, args: Any, columns: range,
    heads: int, dim: int, count: int, lanes: int, narrow: int,
) -> None:  # fmt: skip
    """`add_rows` of some columns, whose sums stay in registers."""
    weights, kept, rows, step, begin, end, found = args[:7]
    load = _halves if narrow else _floats
    size = _HALF_BYTES if narrow else _FLOAT_BYTES
    places, sums = {}, {}
    for head in range(heads):
        factor = _same(builder, at_offset(builder, kept, head * _FLOAT_BYTES), lanes)
        for column in columns:
            place = at_offset(builder, found, (head * dim + column) * _FLOAT_BYTES)
            sums[head, column] = cgutils.alloca_once(builder, ir.VectorType(_FLOAT, lanes))
            before = builder.fmul(_floats(builder, place, lanes), factor, flags=_FAST)
            builder.store(before, sums[head, column])
            places[head, column] = place
    with cgutils.for_range_slice(builder, begin, end, ir.Constant(_LONG, 1), _LONG) as (t, _):
        row = builder.add(rows, builder.mul(t, step))
        pieces = {c: load(builder, at_offset(builder, row, c * size), lanes) for c in columns}
        of_row = at_index(builder, weights, t, _FLOAT_BYTES)
        for head in range(heads):
            weight = _same(builder, at_offset(builder, of_row, head * count * _FLOAT_BYTES), lanes)
            for column, piece in pieces.items():
                total, product = sums[head, column], builder.fmul(weight, piece, flags=_FAST)
                builder.store(builder.fadd(builder.load(total), product, flags=_FAST), total)
    for key, place in places.items():
        _store(builder, builder.load(sums[key]), place)


@_constant
def highest_of(context: Any, values: Any, floor: Any, count: Any, lanes: Any) -> Any:
    """The highest of `count` float32 and `floor`."""
    sizes = _values(count, lanes)
    if sizes is None:
        return None

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, width = sizes
        kind = ir.FunctionType(_FLOAT, [ir.VectorType(_FLOAT, width)])
        name = f"llvm.vector.reduce.fmax.v{width}f32"
        reduce = cgutils.get_or_insert_function(builder.module, kind, name)
        top = args[1]
        for first in range(0, number, width):
            piece = _floats(builder, at_offset(builder, args[0], first * _FLOAT_BYTES), width)
            other = builder.call(reduce, [piece], fastmath=_FAST)
            top = builder.select(builder.fcmp_ordered(">", other, top), other, top)
        return top

    return types.float32(types.int64, types.float32, count, lanes), build


@intrinsic
def address_of(context: Any, array: Any) -> Any:
    """Where an array's elements begin."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(made.data, _LONG)

    return types.int64(array), build


def _values(*sizes: Any) -> tuple[int, ...] | None:
    """Constants as Numba knows them; None if one is not, and it is to try again."""
    if all(isinstance(size, types.IntegerLiteral) for size in sizes):
        return tuple(size.literal_value for size in sizes)
    return None


def at_offset(builder: Any, address: Any, offset: int) -> Any:
    """An address so many bytes further on."""
    return builder.add(address, ir.Constant(_LONG, offset))


def at_index(builder: Any, address: Any, index: Any, size: int) -> Any:
    """The address of an element, of `size` bytes each."""
    return builder.add(address, builder.mul(index, ir.Constant(_LONG, size)))


def _floats(builder: Any, address: Any, lanes: int) -> Any:
    """float32 from an address on."""
    place = builder.inttoptr(address, ir.VectorType(_FLOAT, lanes).as_pointer())
    # Rows begin anywhere. Unless told, LLVM expects a vector at a multiple of its size, and an
    # instruction that relies on it ends the process.
    return builder.load(place, align=_FLOAT_BYTES)


def _halves(builder: Any, address: Any, lanes: int) -> Any:
    """bfloat16 from an address on, as float32."""
    place = builder.inttoptr(address, ir.VectorType(_HALF, lanes).as_pointer())
    words = ir.VectorType(_WORD, lanes)
    wide = builder.zext(builder.load(place, align=_HALF_BYTES), words)
    moved = builder.shl(wide, ir.Constant(words, [_BITS] * lanes))
    return builder.bitcast(moved, ir.VectorType(_FLOAT, lanes))


def _same(builder: Any, address: Any, lanes: int) -> Any:
    """The float32 at an address, in all lanes."""
    place = builder.inttoptr(address, _FLOAT.as_pointer())
    return in_all_lanes(builder, builder.load(place, align=_FLOAT_BYTES), lanes)


def in_all_lanes(builder: Any, value: Any, lanes: int = _MOST_LANES) -> Any:
    empty = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, empty, _indices([0] * lanes))


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=_FLOAT_BYTES)


def _indices(lanes: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_WORD, len(lanes)), lanes)
