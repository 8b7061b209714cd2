"""Pictures as bytes: their size without decoding them, and their canonical decoding to RGB."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from types import MappingProxyType

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from protocol.errors import InvalidRequest, PayloadTooLarge

# No format whose decoder runs another program or is of no use in a browser.
FORMATS = (
    "AVIF",
    "BMP",
    "GIF",
    "ICO",
    "JPEG",
    "JPEG2000",
    "MPO",
    "PNG",
    "PPM",
    "QOI",
    "TIFF",
    "WEBP",
)
DEFAULT_MAX_PIXELS = 64_000_000

_TURNS = MappingProxyType(
    {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
)
_SWAPPED = (5, 6, 7, 8)


def probe(
    data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS, param: str | None = None
) -> tuple[int, int]:
    """(width, height) in pixels as `load_rgb` will give them: after EXIF orientation.

    Reads headers only; a PNG whose metadata follow its pixels is decoded. `InvalidRequest` if this
    is no picture or a broken one, `PayloadTooLarge` above `max_pixels`; both name `param`.
    """
    image = _open(data, max_pixels, param)
    if image.format == "TIFF":  # Pillow has swapped the sides already
        return image.size
    if image.format == "PNG" and _metadata_follow_pixels(data):
        _load(image, param)
    width, height = image.size
    return (height, width) if _orientation(image) in _SWAPPED else (width, height)


def load_rgb(
    data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS, param: str | None = None
) -> Image.Image:
    """The picture in mode RGB, upright, transparency on white, 16-bit grey scaled to 8 bits.

    Of an animation, the first frame. Errors as `probe`; `InvalidRequest` if pixels are missing.
    """
    image = _open(data, max_pixels, param)
    _load(image, param)
    turn = _TURNS.get(_orientation(image))
    try:
        rgb = _to_rgb(image)
    except (ValueError, OSError) as error:  # a mode that Pillow cannot convert
        raise _broken(error, param) from error
    return rgb if turn is None else rgb.transpose(turn)


def _open(data: bytes, max_pixels: int, param: str | None) -> Image.Image:
    if not data:
        raise InvalidRequest("the picture is empty", param=param, code="invalid_image")
    Image.init()  # all decoders, not only those that open() loads by itself
    try:
        image = Image.open(BytesIO(data), formats=[f for f in FORMATS if f in Image.OPEN])
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(max_pixels, param) from None
    except UnidentifiedImageError:
        raise InvalidRequest(
            "this is not a picture of a known format (PNG, JPEG, WebP, GIF, …), or it is broken",
            param=param,
            code="invalid_image",
        ) from None
    except Exception as error:  # decoders raise anything on hostile bytes
        raise _broken(error, param) from error
    width, height = image.size
    if width < 1 or height < 1:
        raise InvalidRequest("the picture has no pixels", param=param, code="invalid_image")
    if width * height > max_pixels:
        raise _too_large(max_pixels, param)
    return image


def _load(image: Image.Image, param: str | None) -> None:
    try:
        image.load()
    except Exception as error:  # decoders raise anything on hostile bytes
        raise _broken(error, param) from error


def _broken(error: Exception, param: str | None) -> InvalidRequest:
    message = f"the picture is broken or incomplete: {error}"
    return InvalidRequest(message, param=param, code="invalid_image")


def _too_large(max_pixels: int, param: str | None) -> PayloadTooLarge:
    return PayloadTooLarge(f"the picture has more than {max_pixels} pixels", param=param)


def _orientation(image: Image.Image) -> int:
    """The EXIF (or XMP) orientation, 1 to 8; 1 where it cannot be read."""
    try:
        # Not image.getexif(): the one of PNG decodes the pixels.
        value = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except Exception:  # broken metadata do not make a picture unusable
        return 1
    return value if isinstance(value, int) else 1


def _metadata_follow_pixels(png: bytes) -> bool:
    seen_pixels = False
    for kind in _png_chunks(png):
        seen_pixels = seen_pixels or kind == b"IDAT"
        if seen_pixels and kind in (b"eXIf", b"iTXt", b"tEXt", b"zTXt"):
            return True
    return False


def _png_chunks(png: bytes) -> Iterator[bytes]:
    place = 8
    while place + 8 <= len(png):
        length, kind = struct.unpack_from(">I4s", png, place)
        yield kind
        place += 12 + length


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if image.mode.startswith("I;16") or image.mode == "I":
        return _grey16_to_rgb(image)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _grey16_to_rgb(image: Image.Image) -> Image.Image:
    """Pillow's own conversion would clip everything above 255."""
    grey = np.clip(np.asarray(image, dtype=np.int32), 0, 65535)
    return Image.fromarray(((grey + 128) // 257).astype(np.uint8)).convert("RGB")
