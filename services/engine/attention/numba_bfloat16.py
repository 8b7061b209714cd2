"""What kernels that Numba compiles are made of: bfloat16 by its bits, uint16, computed in float32;
and how they get their arguments and their share of the work, see `numba_runtime.Kernel`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

LOG2_E = np.float32(1.4426950408889634)
_ROUNDED = 0x7FFF
# 2**f for 0 <= f < 1, the highest power first; relative error below 3e-7
_POWERS = tuple(
    np.float32(c)
    for c in (1.8775767e-3, 8.9893397e-3, 5.5826318e-2, 2.4015361e-1, 6.9315308e-1, 9.9999994e-1)
)
function = partial(njit, fastmath=True, boundscheck=False, error_model="numpy")
inlined = function(inline="always")
kernel = partial(
    cfunc, types.void(types.voidptr), cache=True, fastmath=True, boundscheck=False,
    error_model="numpy",
)  # fmt: skip
BYTES = 2  # of a bfloat16
FIRST = 2  # of a kernel's words: before are the next item of work and the number of all
_MOST_WORDS = 32
# Elements of an array whose length only its kernel knows.
_FAR = 1 << 62
_LEAST, _SIGN, _ALL_BUT_SIGN = np.int32(-(2**31)), np.int32(31), np.int32(2**31 - 1)


@intrinsic
def widened(context: Any, bits: Any) -> Any:
    """The float32 of a bfloat16."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        moved = builder.shl(builder.zext(args[0], word), ir.Constant(word, 16))
        return builder.bitcast(moved, ir.FloatType())

    return types.float32(types.uint16), build


@intrinsic
def float_of(context: Any, bits: Any) -> Any:
    """The float32 that has these bits."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), build


@intrinsic
def bits_of(context: Any, value: Any) -> Any:
    """The bits of a float32."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), build


@inlined
def power_of_two(x: Any) -> Any:
    """2**x for x <= 0, without a branch, so that many are computed at once."""
    # 2**-126 is the smallest normal float32: the bits of lower powers would run into the sign.
    x = max(x, np.float32(-126.0))
    whole = np.floor(x)
    rest = x - whole
    value = _POWERS[0]
    value = value * rest + _POWERS[1]
    value = value * rest + _POWERS[2]
    value = value * rest + _POWERS[3]
    value = value * rest + _POWERS[4]
    value = value * rest + _POWERS[5]
    return value * float_of((np.int32(whole) + np.int32(127)) << np.int32(23))


@inlined
def narrowed(value: Any) -> Any:
    """The bfloat16 nearest to a float32, the even one of two."""
    bits = bits_of(value)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(_ROUNDED) + odd) >> np.uint32(16))


@intrinsic
def _place(context: Any, address: Any) -> Any:
    """The pointer that an integer is."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), build


@intrinsic
def _taken(context: Any, counter: Any) -> Any:
    """The integer at a pointer, which counts one up for all threads."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        place = builder.bitcast(args[0], word.as_pointer())
        # No order beyond the counter's own: pieces of work do not read what others have written.
        return builder.atomic_rmw("add", place, ir.Constant(word, 1), "monotonic")

    return types.int64(types.voidptr), build


@intrinsic
def prefetched(context: Any, address: Any) -> Any:
    """Has the processor read what lies at an address, which may be anything, into its cache."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        fetch = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        read, near, data = (ir.Constant(word, value) for value in (0, 2, 1))
        builder.call(fetch, [builder.inttoptr(args[0], byte), read, near, data])
        return context.get_dummy_value()

    return types.void(types.int64), build


@inlined
def words_of(data: Any) -> Any:
    """A kernel's arguments, int64."""
    return carray(data, _MOST_WORDS, np.int64)


@inlined
def number(data: Any, index: Any) -> Any:
    """An argument that is a float."""
    return np.float32(carray(data, _MOST_WORDS, np.float64)[index])


@inlined
def halves(address: Any) -> Any:
    """uint16 from an address on."""
    return carray(_place(address), _FAR, np.uint16)


@inlined
def row_of(address: Any, row: Any, step: Any) -> Any:
    """uint16 from a row on, where rows begin `step` elements apart. Loops over what an array begins
    with are compiled to vector instructions: elsewhere an index could be negative, as Numba sees
    it, and each element would be checked for that."""
    return halves(address + BYTES * row * step)


@inlined
def octets(address: Any) -> Any:
    """uint8 from an address on."""
    return carray(_place(address), _FAR, np.uint8)


@inlined
def pairs_of(address: Any) -> Any:
    """uint32 from an address on, two bfloat16 each."""
    return carray(_place(address), _FAR, np.uint32)


@inlined
def floats(address: Any) -> Any:
    """float32 from an address on."""
    return carray(_place(address), _FAR, np.float32)


@inlined
def highest(address: Any, count: Any) -> Any:
    """The largest of `count` float32 from an address on. By their bits: the order of floats is that
    of integers, backwards below zero, and only of integers are many compared at once."""
    bits = carray(_place(address), _FAR, np.int32)
    top = _LEAST
    for c in range(count):
        word = bits[c]
        top = max(top, word ^ ((word >> _SIGN) & _ALL_BUT_SIGN))
    return float_of(np.int32(top ^ ((top >> _SIGN) & _ALL_BUT_SIGN)))


@inlined
def integers(address: Any) -> Any:
    """int64 from an address on."""
    return carray(_place(address), _FAR, np.int64)


@inlined
def next_item(data: Any) -> Any:
    """A number of work that no other thread has taken, -1 if there is none."""
    item = _taken(data)
    return item if item < carray(data, _MOST_WORDS, np.int64)[1] else -1


@kernel()
def count_up(data: Any) -> None:
    """numbers[i] = i: shows whether kernels run here."""
    numbers = integers(words_of(data)[FIRST])
    item = next_item(data)
    while item >= 0:
        numbers[item] = item
        item = next_item(data)
