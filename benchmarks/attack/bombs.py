"""Pictures, clips and texts of few bytes, or of many, that take long to read."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from fractions import Fraction
from typing import Any

_RATE = 100  # frames a second


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


def clip(frames: int, width: int = 8192, height: int = 4320) -> bytes:
    """An MP4 whose frames are as large as they may be, and all but the first empty: who counts them
    reads one packet each. Needs the extra video (PyAV)."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=_RATE, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.max_b_frames = 0
        packets = []
        for number in range(2):
            black = av.VideoFrame(width, height, "yuv420p")
            black.pts, black.time_base = number, Fraction(1, _RATE)
            packets += stream.encode(black)
        first, empty = [*packets, *stream.encode()][:2]
        data = bytes(empty)
        container.mux(first)
        for number in range(1, frames):
            packet = av.Packet(data)
            packet.stream, packet.time_base = stream, Fraction(1, _RATE)
            packet.pts = packet.dts = number
            container.mux(packet)
    return file.getvalue()


def sound(size: int) -> bytes:
    """A WAV that says it has 4 GB of samples, and has so many bytes of silence."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 16_000, 32_000, 2, 16)
    return b"RIFF\xff\xff\xff\xffWAVE" + form + b"data\xf0\xff\xff\xff" + bytes(size)


def blanks(size: int) -> bytes:
    """A prompt of nothing but blanks."""
    return b'{"prompt":"' + b" " * size + b'"}'


def nested(depth: int) -> bytes:
    """A chat with a field that is an array in an array, and so on."""
    return b'{"messages":' + b"[" * depth + b"]" * depth + b"}"


def url_of(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64," + base64.b64encode(data).decode()
