"""The size of a picture from its header: a few bytes are read, nothing is decoded.

Only formats whose decoder takes time and memory in proportion to this size are known here. A
file of another format (ICO, AVIF, JPEG in TIFF, …) is no picture to us.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator

from protocol.errors import InvalidRequest, PayloadTooLarge
from services.frontend.media.picture_header import (
    MOST_PARTS,
    ORIENTATION,
    BadHeader,
    PictureHeader,
    first_directory,
    orientation_of,
)
from services.frontend.media.webp import read_webp

DEFAULT_MAX_PIXELS = 64_000_000
_MOST_SCANS = 100  # of a JPEG; each is decoded over the whole picture
_PNG, _GIF, _JPEG = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a"), b"\xff\xd8\xff"
_TIFF = (b"II*\0", b"MM\0*")
_WIDTH, _HEIGHT, _COMPRESSION = 256, 257, 259
_BMP_COMPRESSIONS = (0, 3)  # none, bit fields: the others' decoder is slow
_TIFF_COMPRESSIONS = (1, 2, 3, 4, 5, 8, 32773, 32946)  # none, CCITT, LZW, Deflate, PackBits
_FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)  # JPEG's that its decoder takes
_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF)
# What has a length in a JPEG, and its end; stuffed bytes and restarts stand within a scan.
_SEGMENT_OR_END = re.compile(rb"\xff[\xc0-\xc7\xc9-\xcf\xd9-\xdd\xe0-\xef\xfe]")
_XMP_SEGMENT, _XMP_TEXT = b"http://ns.adobe.com/xap/1.0/\0", b"XML:com.adobe.xmp\0\0\0\0\0"


def probe(
    data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS, param: str | None = None
) -> tuple[int, int]:
    """(width, height) in pixels once it is upright, as it is decoded."""
    return checked_header(data, max_pixels, param).size


def refuse_other_pictures(start: bytes, param: str | None = None) -> None:
    """`InvalidRequest` if a file that begins so is no picture of a known format; 16 bytes do."""
    try:
        _check_format(start[:16])
    except BadHeader as error:
        raise InvalidRequest(str(error), param=param, code="invalid_image") from None


def checked_header(data: bytes, max_pixels: int, param: str | None) -> PictureHeader:
    """Read in time that does not depend on the number of pixels. `InvalidRequest` if this is no
    picture or a broken one, `PayloadTooLarge` above `max_pixels`; both name `param`."""
    if not data:
        raise InvalidRequest("the picture is empty", param=param, code="invalid_image")
    try:
        header = _read_header(data)
    except BadHeader as error:
        raise InvalidRequest(str(error), param=param, code="invalid_image") from None
    if header.width < 1 or header.height < 1:
        raise InvalidRequest("the picture has no pixels", param=param, code="invalid_image")
    if header.width * header.height > max_pixels:
        message = f"the picture has more than {max_pixels} pixels"
        raise PayloadTooLarge(message, param=param)
    return header


def _read_header(data: bytes) -> PictureHeader:
    """`BadHeader` if `data` is no picture of a known format."""
    try:
        return _check_format(bytes(data[:16]))(data)
    except (struct.error, IndexError):
        raise BadHeader("the picture is broken or incomplete") from None


def _check_format(start: bytes) -> Callable[[bytes], PictureHeader]:
    """What reads the header of a file that begins with these 16 bytes; `BadHeader` if that is no
    picture of a known format."""
    read = _reader_of(start)
    if read is None:
        raise BadHeader("this is no picture of a known format (PNG, JPEG, WebP, GIF, BMP, TIFF)")
    return read


def _reader_of(start: bytes) -> Callable[[bytes], PictureHeader] | None:
    if start.startswith(_PNG):
        return _png
    if start.startswith(_JPEG):
        return _jpeg
    if start.startswith(_GIF):
        return _gif
    if start.startswith(b"BM"):
        return _bmp
    if start.startswith(_TIFF):
        return _tiff
    return read_webp if start[:4] == b"RIFF" and start[8:12] == b"WEBP" else None


def _png(data: bytes) -> PictureHeader:
    """Metadata may follow the pixels."""
    width = height = 0
    exif = xmp = b""
    for number, (kind, start, size) in enumerate(_png_chunks(data)):
        # A second header could say another size than the one that decoders go by.
        if (kind == b"IHDR") != (number == 0):
            raise BadHeader("the PNG does not begin with its header, or has two")
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", data, start)
        elif kind == b"eXIf":
            exif = exif or bytes(data[start : start + size])
        elif kind == b"iTXt" and data[start : start + len(_XMP_TEXT)] == _XMP_TEXT:
            xmp = xmp or bytes(data[start : start + size])
    return PictureHeader("PNG", width, height, orientation_of(exif, xmp))


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(kind, offset of the content, its size) of each chunk."""
    place = len(_PNG)
    for _ in range(MOST_PARTS):
        if place + 8 > len(data):
            return
        size, kind = struct.unpack_from(">I4s", data, place)
        yield kind, place + 8, size
        # Length, kind and checksum around the content.
        place += 12 + size
    raise BadHeader("the PNG has too many chunks")


def _jpeg(data: bytes) -> PictureHeader:
    frame: tuple[int, int] | None = None
    exif = xmp = b""
    end = 0
    for marker, start, size in _jpeg_segments(data):
        end = start + size
        if marker in _OTHER_FRAMES or (marker in _FRAMES and frame is not None):
            raise BadHeader("the JPEG is of a kind that is not supported")
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, start + 1)
            frame = width, height
        elif marker == 0xE1 and data[start : start + 6] == b"Exif\0\0":
            exif = exif or bytes(data[start : start + size])
        elif marker == 0xE1 and data[start : start + len(_XMP_SEGMENT)] == _XMP_SEGMENT:
            xmp = xmp or bytes(data[start : start + size])
    if frame is None:
        raise BadHeader("the JPEG is broken: it has no frame")
    if _scans(data, end) > _MOST_SCANS:
        raise BadHeader(f"the JPEG has more than {_MOST_SCANS} scans")
    return PictureHeader("JPEG", *frame, orientation_of(exif, xmp))


def _scans(data: bytes, place: int) -> int:
    """Of the picture whose segments go on at `place`: thumbnails lie within segments, a phone's
    video behind the end."""
    scans = 0
    for _ in range(MOST_PARTS):
        found = _SEGMENT_OR_END.search(data, place)
        if found is None or found[0] == b"\xff\xd9":
            return scans
        scans += found[0] == b"\xff\xda"
        place = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
    raise BadHeader("the JPEG has too many segments")


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, offset of the content, its size) of each segment before the first scan."""
    place = 2
    for _ in range(MOST_PARTS):
        if data[place] != 0xFF:
            raise BadHeader("the JPEG is broken: no marker where one must be")
        marker = data[place + 1]
        # Fill bytes, and TEM, which has no length (ITU T.81, B.1.1).
        if marker in (0xFF, 0x01):
            place += 1 if marker == 0xFF else 2
            continue
        if marker == 0xDA:
            return
        # Restart marks and the end of the picture stand only inside or after a scan.
        if marker < 0xC0 or 0xD0 <= marker <= 0xD9:
            raise BadHeader("the JPEG is broken: it ends before its pixels")
        (size,) = struct.unpack_from(">H", data, place + 2)
        if size < 2:
            raise BadHeader("the JPEG is broken: a segment has no length")
        yield marker, place + 4, size - 2
        place += 2 + size
    raise BadHeader("the JPEG has too many segments")


def _gif(data: bytes) -> PictureHeader:
    """The screen, enlarged by the first frame if that is larger, as Pillow does."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    place = 13 + _colours(flags)
    for _ in range(MOST_PARTS):
        kind = data[place]
        if kind == 0x2C:
            x, y, w, h = struct.unpack_from("<HHHH", data, place + 1)
            return PictureHeader("GIF", max(width, x + w), max(height, y + h))
        if kind != 0x21:
            raise BadHeader("the GIF is broken or has no picture")
        place = _after_blocks(data, place + 2)
    raise BadHeader("the GIF has too many extensions")


def _colours(flags: int) -> int:
    """Bytes of a colour table."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _after_blocks(data: bytes, place: int) -> int:
    for _ in range(MOST_PARTS):
        size = data[place]
        place += 1 + size
        if not size:
            return place
    raise BadHeader("the GIF has too many blocks")


def _bmp(data: bytes) -> PictureHeader:
    (header_size,) = struct.unpack_from("<I", data, 14)
    # OS/2's header, whose sides have no sign.
    if header_size == 12:
        width, height = struct.unpack_from("<HH", data, 18)
        return PictureHeader("BMP", width, height)
    width, height, _, _, compression = struct.unpack_from("<iiHHI", data, 18)
    if header_size < 40 or compression not in _BMP_COMPRESSIONS:
        raise BadHeader("compressed BMP files are not supported")
    # A negative height means rows from the top.
    return PictureHeader("BMP", width, abs(height))


def _tiff(data: bytes) -> PictureHeader:
    try:
        tags = first_directory(data)
    except ValueError:
        raise BadHeader("the TIFF is broken") from None
    if tags.get(_COMPRESSION, 1) not in _TIFF_COMPRESSIONS:
        raise BadHeader("this compression of TIFF files is not supported")
    orientation = tags.get(ORIENTATION, 1)
    width, height = tags.get(_WIDTH, 0), tags.get(_HEIGHT, 0)
    return PictureHeader("TIFF", width, height, orientation if 1 <= orientation <= 8 else 1)
