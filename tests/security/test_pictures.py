"""Pictures that cost more than they look like are refused by their headers, before any decoder."""

import io
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protocol.errors import RequestError
from services.frontend.media.image import load_rgb
from services.frontend.media.picture_formats import probe
from tests.support.frontend_helpers import frontend, image_part, render, user, write_model

SOME = Image.fromarray(np.arange(16 * 8 * 3, dtype=np.uint8).reshape(8, 16, 3))


def saved(form: str, image: Image.Image = SOME, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *more: bytes) -> bytes:
    """Black, of few bytes."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    rows = zlib.compress(bytes(height * (1 + (width + 7) // 8)), 9)
    return b"".join(
        (b"\x89PNG\r\n\x1a\n", header, chunk(b"IDAT", rows), *more, chunk(b"IEND", b""))
    )


def ico(inner: bytes) -> bytes:
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(inner), 22) + inner


@pytest.fixture
def no_decoder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test whose picture reaches a decoder, even if its error is caught."""
    opened: list[object] = []

    def refuse(*given: object, **_: object) -> None:
        opened.append(given)
        raise AssertionError("a decoder was started")

    monkeypatch.setattr(Image, "open", refuse)
    yield
    assert not opened


def status_of(data: bytes) -> int:
    """What both ways say, which is the same."""
    found = set()
    for read in (probe, load_rgb):
        with pytest.raises(RequestError) as caught:
            read(data, param="here")
        assert caught.value.param == "here"
        found.add(caught.value.status)
    (status,) = found
    return status


@pytest.mark.usefixtures("no_decoder")
def test_text_behind_the_pixels_of_a_png_decodes_nothing() -> None:
    late = chunk(b"tEXt", b"Comment\0late"), chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x/>")
    assert probe(png(8000, 8000, *late)) == (8000, 8000)


@pytest.mark.usefixtures("no_decoder")
@pytest.mark.parametrize("form", ["ICO", "PPM", "QOI", "AVIF", "JPEG2000", "TGA", "ICNS", "EPS"])
def test_formats_that_are_not_on_the_list(form: str) -> None:
    assert status_of(saved_otherwise(form)) == 400


def saved_otherwise(form: str) -> bytes:
    """By their first bytes, for the encoders that may not be there."""
    starts = {
        "QOI": b"qoif" + struct.pack(">IIBB", 4000, 4000, 3, 0) + b"\xfe" * 64,
        "AVIF": b"\0\0\0\x1cftypavif" + bytes(64),
        "JPEG2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(64),
        "ICO": ico(png(13_000, 13_000)),
        "PPM": b"P3 4000 4000 255\n" + b"1 " * 64,
        "TGA": bytes(2) + b"\x02" + bytes(64),
        "ICNS": b"icns" + bytes(64),
        "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    }
    return starts[form]


def webp(canvas: tuple[int, int], frame: bytes) -> bytes:
    sizes = [(side - 1).to_bytes(3, "little") for side in canvas]
    head = b"VP8X" + struct.pack("<I", 10) + bytes(4) + b"".join(sizes)
    body = b"WEBP" + head + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


def bmp_of(compression: int) -> bytes:
    data = bytearray(saved("BMP"))
    struct.pack_into("<I", data, 30, compression)
    return bytes(data)


def with_second_frame(jpeg: bytes) -> bytes:
    start = jpeg.index(b"\xff\xc0")
    size = 2 + struct.unpack_from(">H", jpeg, start + 2)[0]
    return jpeg[: start + size] + jpeg[start : start + size] + jpeg[start + size :]


SCAN = b"\xff\xda\0\x08\1\1\0\0\x3f\0\0"
INSIDE = {
    "more pixels than allowed": (png(9000, 9000), 413),
    "as many, one row": (png(65_000_000, 1), 413),
    "a WebP's frame beyond its canvas": (webp((4, 4), saved("WEBP", lossless=True)[12:]), 400),
    "a WebP without a picture": (webp((4, 4), b""), 400),
    "JPEG in TIFF": (saved("TIFF", compression="jpeg"), 400),
    "run lengths in BMP": (bmp_of(1), 400),
    "PNG in BMP": (bmp_of(5), 400),
    "two frames in a JPEG": (with_second_frame(saved("JPEG")), 400),
    "a thousand scans": (saved("JPEG")[:-2] + SCAN * 1000, 400),
    "a thousand scans behind what only looks like an end": (
        saved("JPEG")[:-2] + b"\xff\xff\xfe\0\x04\xff\xd9\xff\0\xd9\xff\xd0" + SCAN * 1000, 400),
    "a hundred thousand segments before the end": (
        saved("JPEG")[:-2] + b"\xff\xfe\0\x02" * 100_000, 400),
    "a hundred thousand chunks": (
        png(4, 4, *[chunk(b"tEXt", b"a\0b")] * 100_000), 400),
    "a JPEG without pixels": (b"\xff\xd8\xff\xd9", 400),
    "a GIF without pictures": (saved("GIF")[:13] + b";", 400),
    "an endless extension": (b"GIF89a" + bytes(7) + b"!\xfe" + b"\1a" * 100_000, 400),
    "a TIFF of too many tags": (b"II*\0\x08\0\0\0\xff\xff" + bytes(9), 400),
    "a TIFF that points beyond its end": (b"II*\0\xff\xff\xff\xff", 400),
}  # fmt: skip


@pytest.mark.usefixtures("no_decoder")
@pytest.mark.parametrize("name", INSIDE)
def test_what_is_inside_counts(name: str) -> None:
    data, status = INSIDE[name]
    assert status_of(data) == status


def test_a_header_that_contradicts_the_decoder() -> None:
    """Another size than was checked is never decoded."""
    data = bytearray(saved("TIFF"))
    (first,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, first)
    entries = [first + 2 + 12 * number for number in range(count)]
    width = next(place for place in entries if struct.unpack_from("<H", data, place)[0] == 256)
    wide = struct.pack("<HHII", 256, 4, 1, 4000)
    last = bytes(data[first + 2 + 12 * count :])
    tags = bytes(data[first + 2 : first + 2 + 12 * count])
    data[first:] = struct.pack("<H", count + 1) + tags + wide + last
    assert width
    with pytest.raises(RequestError) as caught:
        load_rgb(bytes(data))
    assert caught.value.status == 400


def test_ordinary_pictures_are_taken() -> None:
    for form, options in (
        ("PNG", {}), ("JPEG", {"progressive": True}), ("JPEG", {}), ("WEBP", {}), ("GIF", {}),
        ("WEBP", {"lossless": True}), ("BMP", {}), ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"save_all": True, "append_images": [SOME.rotate(180)]}),
    ):  # fmt: skip
        data = saved(form, **options)
        assert probe(data) == load_rgb(data).size == (16, 8)


def test_a_phones_picture_with_a_second_one_inside_is_taken() -> None:
    data = saved("MPO", save_all=True, append_images=[SOME])
    assert probe(data) == load_rgb(data).size == (16, 8)


@pytest.mark.parametrize("progressive", [False, True])
def test_what_follows_a_jpegs_end_is_no_part_of_it(progressive: bool) -> None:
    """As the video of a phone's motion photo."""
    thumbnail = b"\xff\xe1" + struct.pack(">H", 2 + 200 * len(SCAN)) + SCAN * 200
    data = saved("JPEG", progressive=progressive)
    data = data[:2] + thumbnail + data[2:] + b"\0\0\0\x18ftypmp42" + SCAN * 1000
    assert probe(data) == load_rgb(data).size == (16, 8)


def test_headers_of_many_parts_are_read_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand chunks are looked at by a thread of their own."""
    threads: dict[int, int] = {}

    def told(data: bytes, **limits: Any) -> tuple[int, int]:
        threads[len(data)] = threading.get_ident()
        return probe(data, **limits)

    monkeypatch.setattr("services.frontend.media.kinds.probe", told)
    front = frontend(write_model("qwen2_5_vl", tmp_path / "m"))
    large = png(60, 60, *[chunk(b"tEXt", bytes(1000))] * 30)
    small = png(60, 60)
    render(front, user(image_part(small), image_part(large)))
    assert threads[len(small)] == threading.get_ident() != threads[len(large)]
