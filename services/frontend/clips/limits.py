"""What one clip may take, and what a file that is a clip begins with."""

from __future__ import annotations

import msgspec

from protocol.errors import InvalidRequest

FORMATS = "MP4, MOV, WebM or Matroska"
MOST_PIXELS = 8192 * 4320  # of a frame, of which decoders keep up to seventeen
_MATROSKA = b"\x1a\x45\xdf\xa3"
_MOV_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")


class ClipLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one clip: pixels of a frame, seconds that it lasts, and seconds and bytes of memory in
    which it must be read."""

    max_pixels: int = MOST_PIXELS  # larger ones mean `MOST_PIXELS`
    max_seconds: float = 600.0
    read_s: float = 20.0
    memory_bytes: int = 2 << 30

    @property
    def pixels(self) -> int:
        return min(self.max_pixels, MOST_PIXELS)


def refuse_other_containers(start: bytes, param: str | None = None) -> None:
    """`InvalidRequest` if a file that begins so is no clip of a known format; 16 bytes do."""
    container_of(start, param)


def container_of(start: bytes, param: str | None = None) -> str:
    """FFmpeg's name of the format."""
    if start[:4] == _MATROSKA:
        return "matroska"
    if start[4:8] in _MOV_BOXES:
        return "mov"
    raise refused(f"this is no clip of a known format ({FORMATS})", param)


def refused(message: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_video")
