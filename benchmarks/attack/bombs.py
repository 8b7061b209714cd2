"""Pictures of few bytes that take long to decode."""

from __future__ import annotations

import base64
import struct
import zlib


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(side: int) -> bytes:
    """A black square of one bit a pixel, with a text behind its pixels: who wants the text reads
    all of them."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    rows = zlib.compress(bytes(side * (1 + (side + 7) // 8)), 9)
    late = _chunk(b"tEXt", b"Comment\0late")
    start = b"\x89PNG\r\n\x1a\n" + header
    return start + _chunk(b"IDAT", rows) + late + _chunk(b"IEND", b"")


def ico(side: int) -> bytes:
    """An icon that says it is of 16 pixels, with a PNG of `side` inside."""
    inside = png(side)
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inside), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + inside


def qoi(size: int) -> bytes:
    """A QOI of so many bytes, each a run of the same pixel."""
    return b"qoif" + struct.pack(">IIBB", 8000, 8000, 3, 0) + b"\xfd" * size + bytes(7) + b"\1"


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()
