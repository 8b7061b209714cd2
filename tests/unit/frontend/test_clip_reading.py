"""What a clip's file says, and clips that are refused."""

import struct
from fractions import Fraction
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protocol.errors import InvalidRequest
from services.frontend.clips.limits import ClipLimits, container_of
from services.frontend.clips.reading import probe_clip, read_frames
from services.frontend.clips.sampling import Clip
from tests.support.clips import clip, sound

LIMITS = ClipLimits()


def refusal(data: bytes, **limits: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        probe_clip(BytesIO(data), ClipLimits(**limits))
    assert caught.value.code == "invalid_video"
    return caught.value.message


@pytest.mark.parametrize(
    ("codec", "form"),
    [("mpeg4", "mp4"), ("mpeg4", "mov"), ("libvpx", "webm"), ("mpeg4", "matroska")],
)
def test_what_is_said_is_what_is_there(codec: str, form: str) -> None:
    drawn = clip(1, frames=13, rate=5, size=(96, 64), codec=codec, form=form)
    found = probe_clip(BytesIO(drawn.data), LIMITS)
    frames, rate = drawn.decoded
    assert found == Clip(96, 64, 13, 5.0) and (len(frames), rate) == (13, 5.0)
    container_of(drawn.data[:16])
    read = list(read_frames(BytesIO(drawn.data), found, [0, 5, 5, 12], LIMITS))
    assert np.array_equal(np.stack(read), frames[[0, 5, 5, 12]])


def test_a_clip_turned_by_its_container_is_upright() -> None:
    """As telephones write them: the file says by how much, and pixels lie as the sensor does."""
    drawn = clip(2, frames=4, size=(96, 64))
    place = drawn.data.index(b"tkhd") + 4 + 40
    assert struct.unpack_from(">i", drawn.data, place) == (1 << 16,)
    turned = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    data = drawn.data[:place] + turned + drawn.data[place + 36 :]
    found = probe_clip(BytesIO(data), LIMITS)
    assert (found.width, found.height) == (64, 96)
    (first,) = read_frames(BytesIO(data), found, [0], LIMITS)
    assert np.array_equal(first, np.rot90(drawn.decoded[0][0], -1))


def other_files() -> list[bytes]:
    picture = BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "GIF")
    return [b"", b"x", b"#EXTM3U\nhttp://10.0.0.1/", b"ffconcat version 1.0\n", picture.getvalue()]


@pytest.mark.parametrize("data", other_files())
def test_other_files_are_refused_by_their_first_bytes(data: bytes) -> None:
    assert "known format" in refusal(data)
    with pytest.raises(InvalidRequest, match="known format"):
        container_of(data[:16])


def test_files_without_a_clip_in_them() -> None:
    assert "no video stream" in refusal(sound())
    assert "codec is mjpeg" in refusal(clip(1, codec="mjpeg", form="mov").data)
    assert "broken or incomplete" in refusal(b"\0\0\0\x18ftypmp42" + b"\0" * 64)
    assert "broken or incomplete" in refusal(b"\x1a\x45\xdf\xa3" + b"\xff" * 64)


@pytest.mark.parametrize("form", ["mp4", "matroska"])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_clips_that_were_cut_off(form: str, share: float) -> None:
    """With the index at the file's end, or before all frames."""
    flags = "faststart" if form == "mp4" and share > 0.1 else ""
    data = clip(3, frames=60, rate=5, form=form, movflags=flags).data
    message = refusal(data[: int(len(data) * share)])
    assert "incomplete" in message or "no frame" in message


def trimmed(data: bytes, first_s: int, seconds: int) -> bytes:
    """The MP4 with an edit list that shows only this part, as telephones trim clips."""
    (units,) = struct.unpack_from(">I", data, data.index(b"mdhd") + 16)  # a second's
    place = data.index(b"elst") + 12
    shown = struct.pack(">II", seconds * 1000, first_s * units)
    return data[:place] + shown + data[place + 8 :]


def test_a_clip_that_was_trimmed() -> None:
    """Its file has all frames and says so; those that are shown are a whole clip."""
    drawn = clip(3, frames=40)
    data = trimmed(drawn.data, first_s=2, seconds=3)
    found = probe_clip(BytesIO(data), LIMITS)
    assert found == Clip(64, 48, 12, 4.0)
    read = list(read_frames(BytesIO(data), found, range(12), LIMITS))
    assert np.array_equal(np.stack(read), drawn.decoded[0][8:20])
    cut = trimmed(clip(3, frames=40, movflags="faststart").data, first_s=2, seconds=3)
    assert "was cut off" in refusal(cut[:-500])


def test_a_clip_with_damaged_frames_is_no_crash() -> None:
    drawn = clip(4, frames=20)
    for seed in range(20):
        random = np.random.default_rng(seed)
        data = bytearray(drawn.data)
        for place in random.integers(40, len(data), 60):
            data[place] = int(random.integers(256))
        try:
            found = probe_clip(BytesIO(data), LIMITS)
            read = list(read_frames(BytesIO(data), found, range(found.frames), LIMITS))
        except InvalidRequest:
            continue
        assert {frame.shape for frame in read} <= {(found.height, found.width, 3)}


def test_clips_beyond_the_limits() -> None:
    drawn = clip(5, frames=60, rate=5)
    assert "lasts 12.0 s, the most is 11 s" in refusal(drawn.data, max_seconds=11)
    assert "has more than 24 frames" in refusal(drawn.data, max_seconds=0.1)
    assert "has more than 9.6 packets" in refusal(sound(seconds=4, shown=2), max_seconds=0.01)
    assert "more than 3071 (--max-media-pixels)" in refusal(drawn.data, max_pixels=3071)
    enough = ClipLimits(max_pixels=3072, max_seconds=12.0)
    assert probe_clip(BytesIO(drawn.data), enough).frames == 60


@pytest.mark.parametrize(("codec", "form"), [("libx264", "mp4"), ("libvpx", "webm")])
def test_a_clip_whose_frames_are_shown_for_long(codec: str, form: str) -> None:
    drawn = clip(5, frames=3, rate=Fraction(1, 20), codec=codec, form=form)
    found = probe_clip(BytesIO(drawn.data), LIMITS)
    assert found.frames == 3 and found.seconds == pytest.approx(60.0, rel=0.05)


def test_a_size_that_only_the_container_says() -> None:
    """A few bytes claim frames of gigabytes."""
    drawn = clip(6)
    place = drawn.data.index(b"mp4v", drawn.data.index(b"stsd")) + 28
    assert struct.unpack_from(">HH", drawn.data, place) == (64, 48)
    data = drawn.data[:place] + struct.pack(">HH", 65_000, 65_000) + drawn.data[place + 4 :]
    try:
        found = probe_clip(BytesIO(data), LIMITS)
    except InvalidRequest as error:
        assert error.code == "invalid_video"
    else:  # FFmpeg has gone by what the frames themselves say
        assert (found.width, found.height) == (64, 48)


def test_fewer_frames_than_were_counted() -> None:
    drawn = clip(8, frames=20)
    more = Clip(64, 48, 24, 4.0)
    *_, last = read_frames(BytesIO(drawn.data), more, [0, 23], LIMITS)
    assert np.array_equal(last, drawn.decoded[0][-1])
    with pytest.raises(InvalidRequest, match="of 60 frames 20 can be decoded"):
        list(read_frames(BytesIO(drawn.data), Clip(64, 48, 60, 4.0), [0, 59], LIMITS))
