"""The size of a WebP: of its canvas, or of its only picture."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice

from services.frontend.media.picture_header import (
    MOST_PARTS,
    BadHeader,
    PictureHeader,
    orientation_of,
)

_MOST_INSIDE = 4  # chunks of a frame: transparency, pixels
_VP8 = (b"VP8 ", b"VP8L")


def read_webp(data: bytes) -> PictureHeader:
    """The canvas, or the picture if there is none; no frame may leave it."""
    canvas: tuple[int, int] | None = None
    frames: list[tuple[int, int]] = []
    exif = xmp = b""
    for kind, start, size in _riff_chunks(data, 12, len(data)):
        if kind == b"VP8X":
            canvas = canvas or (1 + _uint24(data, start + 4), 1 + _uint24(data, start + 7))
        elif kind == b"ANMF":
            # A frame has at most a chunk of transparency and one of pixels, and unknown ones.
            inside = islice(_riff_chunks(data, start + 16, start + size), _MOST_INSIDE)
            frames += [_frame(data, name, place) for name, place, _ in inside if name in _VP8]
        elif kind in _VP8:
            frames.append(_frame(data, kind, start))
        elif kind == b"EXIF":
            exif = exif or bytes(data[start : start + size])
        elif kind == b"XMP ":
            xmp = xmp or bytes(data[start : start + size])
    if not frames:
        raise BadHeader("the WebP has no picture")
    width, height = canvas or frames[0]
    if any(frame[0] > width or frame[1] > height for frame in frames):
        raise BadHeader("a frame of the WebP is larger than its canvas")
    return PictureHeader("WEBP", width, height, orientation_of(exif, xmp))


def _riff_chunks(data: bytes, place: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    for _ in range(MOST_PARTS):
        if place + 8 > min(end, len(data)):
            return
        kind, size = struct.unpack_from("<4sI", data, place)
        yield kind, place + 8, size
        # RIFF pads chunks to an even length.
        place += 8 + size + size % 2
    raise BadHeader("the WebP has too many chunks")


def _frame(data: bytes, kind: bytes, start: int) -> tuple[int, int]:
    """(width, height) of a lossy or a lossless bit stream."""
    if kind == b"VP8 ":
        if data[start + 3 : start + 6] != b"\x9d\x01\x2a":
            raise BadHeader("the WebP is broken")
        width, height = struct.unpack_from("<HH", data, start + 6)
        # 14 bits each; the upper two ask for scaling, which decoders ignore.
        return width & 0x3FFF, height & 0x3FFF
    mark, bits = struct.unpack_from("<BI", data, start)
    if mark != 0x2F:
        raise BadHeader("the WebP is broken")
    return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1


def _uint24(data: bytes, place: int) -> int:
    return int.from_bytes(data[place : place + 3], "little")
