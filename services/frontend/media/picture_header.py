"""What the header of a picture of any format says, and the orientation by EXIF or XMP."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

MOST_PARTS = 20_000
"""Chunks, segments or blocks of a file that are looked at."""
_SWAPPED = (5, 6, 7, 8)  # orientations that are turned by a quarter


class BadHeader(ValueError):
    """Not a picture that can be decoded here; the text says why."""


@dataclass(frozen=True)
class PictureHeader:
    """`form` as Pillow names it. `width` and `height` in pixels as they are stored; `orientation`
    as of EXIF, 1 to 8."""

    form: str
    width: int
    height: int
    orientation: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the upright picture."""
        if self.orientation in _SWAPPED:
            return self.height, self.width
        return self.width, self.height


ORIENTATION = 0x0112
# An attribute or an element, as writers have it; no XML parser for hostile bytes.
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_FORMS = {1: "B", 3: "H", 4: "I"}  # BYTE, SHORT, LONG
_MOST_ENTRIES = 4096  # tags of a directory


def first_directory(data: bytes) -> dict[int, int]:
    """The first value of each tag of whole numbers that stands in the first directory itself.

    `struct.error` or `ValueError` if `data` are not TIFF.
    """
    order = _ORDERS.get(bytes(data[:4]))
    if order is None:
        raise ValueError("no TIFF")
    (start,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, start)
    if count > _MOST_ENTRIES:
        raise ValueError("too many tags")
    tags: dict[int, int] = {}
    for place in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, number = struct.unpack_from(order + "HHI", data, place)
        # What does not fit the entry lies elsewhere in the file, and is nothing we need.
        if kind in _FORMS and number == 1:
            (tags[tag],) = struct.unpack_from(order + _FORMS[kind], data, place + 8)
    return tags


def orientation_of(exif: bytes, xmp: bytes) -> int:
    """1 to 8; EXIF goes before XMP, and 1 is what broken metadata and none say."""
    value = _in_exif(exif)
    if value is None:
        found = _XMP_ORIENTATION.search(xmp)
        value = int(found[1]) if found else 1
    return value if 1 <= value <= 8 else 1


def _in_exif(exif: bytes) -> int | None:
    try:
        return first_directory(exif.removeprefix(b"Exif\0\0")).get(ORIENTATION)
    except (struct.error, ValueError):
        return None
