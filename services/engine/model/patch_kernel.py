"""A picture's pixels become its patches on a CPU, in one pass. Compiled by Numba."""

from __future__ import annotations

from typing import Any

from services.engine.attention.numba_bfloat16 import (
    FIRST,
    floats,
    halves,
    inlined,
    kernel,
    next_item,
    octets,
    words_of,
)


@inlined
def _cut(out: Any, values: Any, words: Any, row: Any, column: Any) -> None:
    """One patch, from its first pixel on, to where `out` begins."""
    channels, patch, frames = words[6], words[7], words[9]
    place = 0
    for channel in range(channels):
        begin = place
        for y in range(row, row + patch):
            pixels = octets(words[2] + channel * words[3] + y * words[4] + column * words[5])
            for x in range(patch):
                out[place + x] = values[256 * channel + pixels[x * words[5]]]
            place += patch
        # Each of a picture's frames is the same.
        for _ in range(1, frames):
            for i in range(patch * patch):
                out[place + i] = out[begin + i]
            place += patch * patch


@inlined
def _place(words: Any, item: Any, number: Any) -> Any:
    """(the patch's number in `out`, its first row, its first column): four neighbours that become
    one token, if `merge` is 2, follow one another."""
    merge, columns, patch = words[8], words[10], words[7]
    group, within = number // (merge * merge), number % (merge * merge)
    row = item * merge + within // merge
    column = group * merge + within % merge
    return item * columns * merge + number, row * patch, column * patch


@inlined
def _cut_all(data: Any, array: Any, size: Any) -> None:
    """`array`: what lies at an address, values of `size` bytes."""
    words = words_of(data)[FIRST:]
    count, width = words[10] * words[8], words[6] * words[9] * words[7] * words[7]
    item = next_item(data)
    while item >= 0:
        for number in range(count):
            at, row, column = _place(words, item, number)
            out = array(words[0] + size * at * width)
            _cut(out, array(words[1]), words, row, column)
        item = next_item(data)


@kernel()
def cut_floats(data: Any) -> None:
    """Words: out [patches, channels, frames, patch, patch], values of each channel's 256 pixels,
    pixels uint8, their steps in bytes from channel to channel, from row to row and from column to
    column, channels, size of a patch, merge, frames, patches side by side. Work is the patches of
    `merge` rows."""
    _cut_all(data, floats, 4)


@kernel()
def cut_halves(data: Any) -> None:
    """As `cut_floats`, of values of 16 bits."""
    _cut_all(data, halves, 2)
