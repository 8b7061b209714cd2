"""The canonical decoding of pictures to RGB: the one place where any is decoded, and only encoders
come here."""

from __future__ import annotations

from io import BytesIO
from types import MappingProxyType

import numpy as np
from PIL import Image

from protocol.errors import InvalidRequest
from services.frontend.media.picture_formats import DEFAULT_MAX_PIXELS, checked_header
from services.frontend.media.picture_header import PictureHeader

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


def load_rgb(
    data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS, param: str | None = None
) -> Image.Image:
    """The picture in mode RGB, upright, transparency on white, 16-bit grey scaled to 8 bits.

    Of an animation, the first frame. Errors as `checked_header`, and `InvalidRequest` if pixels
    are missing.
    """
    header = checked_header(data, max_pixels, param)
    image = _open(data, header, param)
    _load(image, param)
    # Pillow turns a TIFF upright when it loads it.
    turn = None if header.form == "TIFF" else _TURNS.get(header.orientation)
    try:
        rgb = _to_rgb(image)
    except (ValueError, OSError) as error:  # a mode that Pillow cannot convert
        raise _broken(error, param) from error
    return rgb if turn is None else rgb.transpose(turn)


def _open(data: bytes, header: PictureHeader, param: str | None) -> Image.Image:
    """Pillow's view of it, which must be the one that was checked."""
    Image.init()  # all decoders, not only those that open() loads by itself
    try:
        # The checked header's decoder alone: others may cost more than its pixels tell.
        image = Image.open(BytesIO(data), formats=[header.form])
    except Exception as error:  # decoders raise anything on hostile bytes
        raise _broken(error, param) from error
    expected = header.size if header.form == "TIFF" else (header.width, header.height)
    if image.size != expected:
        raise _broken(ValueError("its parts disagree on its size"), param)
    return image


def _load(image: Image.Image, param: str | None) -> None:
    try:
        image.load()
    except Exception as error:  # decoders raise anything on hostile bytes
        raise _broken(error, param) from error


def _broken(error: Exception, param: str | None) -> InvalidRequest:
    message = f"the picture is broken or incomplete: {error}"
    return InvalidRequest(message, param=param, code="invalid_image")


def _to_rgb(image: Image.Image) -> Image.Image:
    # A PNG in RGB may name one colour as transparent.
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
    # 65535 is 255 times 257, half of which rounds.
    return Image.fromarray(((grey + 128) // 257).astype(np.uint8)).convert("RGB")
