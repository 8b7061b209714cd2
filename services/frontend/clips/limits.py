"""What one clip may take, and what a file claims before FFmpeg has memory for that.

A few bytes of an MP4 or MOV file may say that a track has billions of samples of one size; FFmpeg
makes an index of them all. Of a file that can be played no box claims more samples than the file
has bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

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


def container_of(start: bytes, param: str | None = None) -> str:
    """FFmpeg's name of the format of a file that begins so; `InvalidRequest` (`param`) if it is no
    clip of a known one. 16 bytes do."""
    if start[:4] == _MATROSKA:
        return "matroska"
    if start[4:8] in _MOV_BOXES:
        return "mov"
    raise invalid_clip(f"this is no clip of a known format ({FORMATS})", param)


def invalid_clip(message: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_video")


_FOLDERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"edts", b"mvex")
_NEEDED = (b"moov", b"moof", b"mdat")
_MOST_BOXES = 1 << 16  # that are looked at


class BadBoxes(ValueError):
    """A file that claims what it cannot have; the text says what."""


def check_boxes(data: bytes) -> None:
    """`BadBoxes` if a box claims too many samples, or is compressed, which hides what it claims."""
    view = memoryview(data)
    for number, (kind, content) in enumerate(_boxes(view)):
        if number >= _MOST_BOXES:
            raise BadBoxes(f"it has more than {_MOST_BOXES} boxes")
        if kind == b"cmov":
            raise BadBoxes("its index is compressed")
        if _samples(kind, content) > len(data):
            raise BadBoxes("it says that it has more samples than bytes")


def cut_off(data: bytes) -> bool:
    """Whether a box of frames, or of their index, says that it is longer than the file is. What
    programs add behind the last box, in no box of its own, says nothing."""
    place, view = 0, memoryview(data)
    while len(view) - place >= 8:
        size, kind, head = _head(view[place : place + 16])
        place += max(size, head) if size else len(view) - place
        if place > len(view):
            return kind in _NEEDED
    return False


def _head(view: memoryview) -> tuple[int, bytes, int]:
    """(size of a box, 0 if it goes to the end; its kind; size of its head)."""
    size, kind = int.from_bytes(view[:4], "big"), bytes(view[4:8])
    return (int.from_bytes(view[8:16], "big"), kind, 16) if size == 1 else (size, kind, 8)


def _boxes(view: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """(kind, content) of each box, those of folders too; what is cut off ends where the file
    does."""
    # A list and no recursion: boxes lie in each other as deep as a client likes.
    left = [view]
    while left:
        rest = left.pop()
        while len(rest) >= 8:
            size, kind, head = _head(rest)
            # A box that claims less than its head would be read again and again.
            size = len(rest) if size == 0 else max(size, head)
            content, rest = rest[head:size], rest[size:]
            yield kind, content
            if kind in _FOLDERS:
                left.append(content)


def _samples(kind: bytes, content: memoryview) -> int:
    """How many samples a box claims without a byte for each."""
    # Samples of a run have no bytes here if its flags name no field of theirs.
    if kind == b"trun":
        return int.from_bytes(content[4:8], "big")
    if kind == b"stsz" and any(content[4:8]):  # all of one size
        return int.from_bytes(content[8:12], "big")
    return 0
