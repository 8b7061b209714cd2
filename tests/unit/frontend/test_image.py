"""Pictures: the size that `probe` tells is the one `load_rgb` gives, colours are the right ones."""

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb

from protocol.errors import InvalidRequest, PayloadTooLarge, RequestError
from services.frontend.media.image import load_rgb
from services.frontend.media.picture_formats import probe

WIDTH, HEIGHT = 6, 4
ORIENTATION = 0x112


def gradient(mode: str = "RGB", width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    levels = np.linspace(0, 255, width * height * 3).reshape(height, width, 3)
    return Image.fromarray(levels.astype(np.uint8)).convert(mode)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_probe_agrees_with_the_decoder(form: str) -> None:
    data = saved(gradient(width=32, height=16), form)
    assert probe(data) == load_rgb(data).size
    assert load_rgb(data).mode == "RGB"


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_undone_as_pillow_does(form: str, orientation: int) -> None:
    data = saved(gradient(), form, exif=turned(orientation))
    expected = ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB")
    assert probe(data) == expected.size
    assert load_rgb(data).tobytes() == expected.tobytes()
    assert (probe(data) == (HEIGHT, WIDTH)) == (orientation >= 5)


def test_orientation_in_xmp_counts() -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="6"/></x:xmpmeta>'
    data = saved(gradient(), "JPEG", xmp=xmp)
    assert probe(data) == load_rgb(data).size == (HEIGHT, WIDTH)


def with_late_exif(png: bytes) -> bytes:
    """Move the eXIf chunk of a PNG behind its pixels, where it may stand."""
    start = png.index(b"eXIf") - 4
    length = 12 + struct.unpack_from(">I", png, start)[0]
    chunk, rest = png[start : start + length], png[:start] + png[start + length :]
    end = rest.index(b"IEND") - 4
    return rest[:end] + chunk + rest[end:]


def test_orientation_behind_the_pixels_of_a_png_counts() -> None:
    data = with_late_exif(saved(gradient(), "PNG", exif=turned(6)))
    assert probe(data) == load_rgb(data).size == (HEIGHT, WIDTH)


def test_probe_does_not_decode_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("pixels were decoded")

    files = [saved(gradient(), form, exif=turned(6)) for form in ("JPEG", "PNG", "WEBP", "TIFF")]
    files.append(with_late_exif(files[1]))
    monkeypatch.setattr(Image, "open", refuse)
    assert [probe(data) for data in files] == [(HEIGHT, WIDTH)] * 5


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_orientation_that_does_not_exist_is_ignored(orientation: int) -> None:
    data = saved(gradient(), "JPEG", exif=turned(orientation))
    assert probe(data) == load_rgb(data).size == (WIDTH, HEIGHT)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_is_ignored() -> None:
    data = saved(gradient(), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff broken")
    assert probe(data) == load_rgb(data).size == (WIDTH, HEIGHT)


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGB", "RGBA", "LA"])
def test_colours_are_those_transformers_would_see(mode: str) -> None:
    picture = gradient(mode)
    if mode in ("RGBA", "LA"):
        picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    data = saved(picture, "PNG")
    expected = convert_to_rgb(Image.open(BytesIO(data)), return_numpy=True)
    assert np.array_equal(np.asarray(load_rgb(data)), expected)


def test_transparency_becomes_white() -> None:
    clear = saved(Image.new("RGBA", (2, 2), (255, 0, 0, 0)), "PNG")
    assert load_rgb(clear).getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert load_rgb(saved(palette, "PNG")).getpixel((0, 0)) == (10, 20, 30)
    assert load_rgb(saved(palette, "PNG", transparency=1)).getpixel((0, 0)) == (255, 255, 255)
    assert load_rgb(saved(palette, "GIF", transparency=1)).getpixel((0, 0)) == (255, 255, 255)


def test_cmyk_becomes_rgb() -> None:
    data = saved(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "JPEG", quality=100)
    red, green, blue = np.array(load_rgb(data))[0, 0].tolist()
    assert red > 240 and green < 20 and blue < 20


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled(form: str) -> None:
    levels = np.array([[0, 257, 128 * 257, 65535, 255, 40000]], dtype=np.uint16)
    pixels = np.array(load_rgb(saved(Image.fromarray(levels), form)))[0]
    assert pixels[:, 0].tolist() == [0, 1, 128, 255, 1, 156]
    assert (pixels == pixels[:, :1]).all()


def test_the_first_frame_of_an_animation_counts() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert load_rgb(data).getpixel((0, 0)) == (255, 0, 0)


def error_of(read: Any, data: bytes, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(data, param="here", **options)
    assert caught.value.param == "here"
    return caught.value


@pytest.mark.parametrize("read", [probe, load_rgb])
def test_what_is_no_picture_is_refused(read: Any) -> None:
    for data in (b"", b"hello", b"%PDF-1.7 ...", b"<svg></svg>", saved(gradient(), "EPS")):
        error = error_of(read, data)
        assert (error.status, error.code) == (400, "invalid_image")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
def test_a_truncated_picture_is_found_out_at_the_decoding_at_the_latest(form: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = saved(Image.fromarray(noise), form)
    error = error_of(load_rgb, data[: len(data) * 2 // 3])
    assert (error.status, error.code) == (400, "invalid_image")


def test_a_bomb_is_refused_by_its_header() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    def png(width: int, height: int) -> bytes:
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"") + chunk(b"IEND", b"")

    for size in ((60_000, 60_000), (9_000, 9_000), (2**31 - 1, 1)):
        assert isinstance(error_of(probe, png(*size)), PayloadTooLarge)
    assert isinstance(error_of(probe, png(0, 5)), InvalidRequest)
    assert isinstance(error_of(probe, png(11, 10), max_pixels=100), PayloadTooLarge)
    assert probe(png(10, 10), max_pixels=100) == (10, 10)


JPEG = saved(gradient(width=24, height=24), "JPEG", exif=turned(5))
PNG = saved(gradient("P", 24, 24), "PNG")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@settings(max_examples=100, deadline=None, database=None)
@given(st.sampled_from([JPEG, PNG]), st.data())
def test_damaged_bytes_give_a_picture_or_a_clear_error(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    for place in draw.draw(st.lists(st.integers(0, len(data) - 1), max_size=8)):
        damaged[place] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.integers(0, len(data)))
    try:
        size = probe(bytes(damaged[:cut]))
        assert load_rgb(bytes(damaged[:cut])).size == size
    except RequestError as error:
        assert error.status in (400, 413)
