"""Compressed audio, as FFmpeg reads it in a process of its own."""

from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pytest

from protocol.errors import InvalidRequest
from services.frontend.audio.compressed import read_sound
from services.frontend.audio.reading import AudioReader
from services.frontend.clips.limits import ClipLimits
from services.frontend.clips.readers import ClipReaders
from services.frontend.families.qwen2_audio import AudioWindow
from tests.support.audio_files import audio_file, encoded, tones
from tests.support.clips import clip, sound

PARAM = "messages[0].content[0].input_audio.data"
FORMS = [
    ("mp3", "libmp3lame", 16_000),
    ("mp3", "libmp3lame", 44_100),
    ("flac", "flac", 16_000),
    ("ogg", "libopus", 48_000),
    ("webm", "libopus", 48_000),
]


MP3 = encoded("mp3", "libmp3lame")


@pytest.fixture(scope="module")
def readers() -> Iterator[ClipReaders]:
    made = ClipReaders(ClipLimits(read_s=10.0, memory_bytes=256 << 20), 1)
    yield made
    made.close()


@pytest.mark.parametrize(("form", "codec", "rate"), FORMS)
@pytest.mark.parametrize("channels", [1, 2])
def test_each_format_has_the_same_sound(
    form: str, codec: str, rate: int, channels: int, readers: ClipReaders
) -> None:
    data = encoded(form, codec, rate, channels)
    found_rate, found = readers.sound(data, 2.0)
    assert found_rate == rate and found.dtype == np.float32
    wanted = tones(1, 1.0, rate)
    assert len(found) == len(wanted)
    assert np.corrcoef(found, wanted)[0, 1] > 0.999
    here_rate, here = read_sound(BytesIO(data), 2.0)
    assert here_rate == rate and np.array_equal(here, found)


def test_sound_in_an_mp4(readers: ClipReaders) -> None:
    rate, found = readers.sound(sound(), 2.0)
    assert rate == 8000 and len(found) >= 8000 and not found.any()


def test_all_formats_are_read_to_the_model_s_rate(readers: ClipReaders) -> None:
    reader = AudioReader(AudioWindow({"chunk_length": 2}), readers)
    for data in (audio_file(1).data, MP3, encoded("flac", "flac", 44_100)):
        assert reader.count(data) == len(reader.read(data)) == 16_000


def refusal(data: bytes, readers: ClipReaders, most_seconds: float = 2.0) -> str:
    with pytest.raises(InvalidRequest) as caught:
        readers.sound(data, most_seconds, PARAM)
    assert (caught.value.param, caught.value.code) == (PARAM, "invalid_audio")
    return caught.value.message


def test_files_that_are_refused(readers: ClipReaders) -> None:
    assert "lasts longer than the 0.5 s" in refusal(MP3, readers, 0.5)
    assert "incomplete" in refusal(MP3[: len(MP3) // 2], readers)
    assert "broken or incomplete" in refusal(encoded("flac", "flac")[:9000], readers)
    assert "no audio stream" in refusal(clip(1).data, readers)
    assert "codec is ac3" in refusal(encoded("mp4", "ac3", 48_000), readers)
    assert "known format" in refusal(b"hello, world", readers)
    for start in (b"fLaC", b"OggS", b"ID3\x04", b"\xff\xfb\x90\x00"):
        refusal(start + bytes(5000), readers)


def test_reading_has_a_time() -> None:
    made = ClipReaders(ClipLimits(read_s=0.001), 1)
    assert "within 0.001 s (--video-timeout)" in refusal(MP3, made)
    made.close()


def test_without_ffmpeg_wav_is_read_alone() -> None:
    reader = AudioReader(AudioWindow({"chunk_length": 2}), None)
    assert reader.count(audio_file(1).data) == 16_000
    with pytest.raises(InvalidRequest, match="--no-allow-clips") as caught:
        reader.count(MP3, PARAM)
    assert (caught.value.param, caught.value.code) == (PARAM, "invalid_audio")
