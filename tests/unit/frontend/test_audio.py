"""WAV files as bytes: every form of sample, another rate, and files that are broken."""

from io import BytesIO

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.errors import InvalidRequest
from services.frontend.audio.formats import check_said, format_of
from services.frontend.audio.reading import check_rate, resampled, resampled_length
from services.frontend.audio.wav import read_samples, read_wav_header
from tests.support.audio_files import RATE, audio_file, raw_wav, tones, wav
from tests.support.clips import sound

PARAM = "messages[0].content[0].input_audio.data"
PLAIN = audio_file(1).data


def samples_of(data: bytes) -> NDArray[np.float32]:
    return read_samples(data, read_wav_header(data, PARAM), PARAM)


def refusal(data: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        samples_of(data)
    assert (caught.value.param, caught.value.code) == (PARAM, "invalid_audio")
    return caught.value.message


def test_sixteen_bits_are_exact() -> None:
    made = audio_file(1, seconds=0.3)
    header = read_wav_header(made.data)
    assert (header.rate, header.channels, header.frames) == (RATE, 1, 4800)
    assert header.seconds == 0.3
    found = read_samples(made.data, header)
    assert found.dtype == np.float32 and np.array_equal(found, made.samples)
    assert np.array_equal(read_samples(memoryview(made.data), header), found)  # type: ignore[arg-type]


@pytest.mark.parametrize(("code", "width"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_every_form_of_sample(code: int, width: int) -> None:
    """Two channels of which the second is silent: the mean has half the loudness."""
    heard = tones(2, seconds=0.1)
    both = np.stack([heard, np.zeros_like(heard)], axis=1).astype(np.float64)
    if code == 3:
        content = both.astype(f"<f{width // 8}").tobytes()
    elif width == 8:
        content = np.round(both * 127 + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(both * (2.0 ** (width - 1) - 1)).astype("<i4")
        content = whole.view(np.uint8).reshape(-1, 4)[:, : width // 8].tobytes()
    found = samples_of(raw_wav(content, code, width, channels=2))
    assert np.abs(found - heard / 2).max() <= 2.0 ** (1 - min(width, 24))


def test_what_encoders_write_as_a_stream_is_read_to_its_end() -> None:
    whole = samples_of(PLAIN)
    streamed = raw_wav(PLAIN[44:], 1, 16, size=0xFFFFFFFF)
    assert np.array_equal(samples_of(streamed), whole)


def test_the_extensible_header_says_the_format_further_behind() -> None:
    form = raw_wav(PLAIN[44:], 0xFFFE, 16)
    assert "format 65534" in refusal(form)  # it has no further part
    more = b"\x16\x00" + b"\x10\x00" + bytes(4) + b"\x01\x00" + bytes(14)
    at = form.index(b"fmt ")
    longer = form[: at + 4] + b"\x28\0\0\0" + form[at + 8 : at + 24] + more + form[at + 24 :]
    assert np.array_equal(samples_of(longer), samples_of(PLAIN))


def test_broken_files() -> None:
    assert "of 32000 bytes of samples 15956 are there" in refusal(PLAIN[:16000])
    assert "has no samples" in refusal(PLAIN[:36])
    assert "has no samples" in refusal(raw_wav(b"", 1, 16))
    for other in (b"hello, world", b"", sound()):
        assert "no WAV file" in refusal(other)
    assert "format 6 with 8 bits" in refusal(raw_wav(bytes(100), 6, 8))
    assert "has 9 channels" in refusal(raw_wav(bytes(900), 1, 16, channels=9))
    assert "contradicts itself" in refusal(raw_wav(bytes(100), 1, 16, rate=0))
    before = PLAIN[:12] + b"data" + bytes(4) + PLAIN[12:]
    assert "what its samples are" in refusal(before)
    for wrong in (float("nan"), float("inf"), -1e30):
        loud = np.array([0.0, wrong, 0.5], np.float32)
        assert "no finite numbers" in refusal(raw_wav(loud.tobytes(), 3, 32))


@given(st.binary(max_size=200), st.integers(0, len(PLAIN)))
@example(b"", 0)
def test_any_bytes_are_read_or_refused(noise: bytes, cut: int) -> None:
    for data in (PLAIN[:12] + noise, PLAIN[:36] + noise, PLAIN[: cut % 200] + noise):
        try:
            found = samples_of(data)
        except InvalidRequest as error:
            assert error.code == "invalid_audio"
        else:
            assert len(found) and np.isfinite(found).all()


def test_formats_by_their_first_bytes() -> None:
    assert format_of(PLAIN) == "WAV"
    assert format_of(b"ID3\x04" + bytes(12)) == format_of(b"\xff\xfb\x90\x00") == "MP3"
    assert format_of(b"OggS" + bytes(12)) == "Ogg" and format_of(b"fLaC") == "FLAC"
    assert format_of(b"RIFF\0\0\0\0AVI ") == format_of(b"\xff") == ""
    check_said("WAV", PLAIN, "f")
    check_said("mp3", b"hello", "f")  # which is refused as no audio at all
    for said, start in (("mp3", PLAIN), ("wav", b"fLaC"), ("text", PLAIN)):
        with pytest.raises(InvalidRequest, match="format") as caught:
            check_said(said, start, "f")
        assert caught.value.param == "f"


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 24_000, 44_100, 48_000, 192_000])
def test_another_rate_gives_the_same_sound(rate: int) -> None:
    """Tones of up to 3 kHz are there at each of these rates: but for the ends, where the sound is
    cut off, they come out as they are at the wanted rate."""
    found = resampled(tones(3, 0.5, rate), rate, RATE)
    wanted = tones(3, 0.5)
    assert len(found) == len(wanted) == resampled_length(rate // 2, rate, RATE)
    inner = slice(800, 1800)  # within the first tone, away from where another begins
    assert np.abs(found[inner] - wanted[inner]).max() < 2e-4


def test_what_the_lower_rate_cannot_have_is_taken_out() -> None:
    time = np.arange(48_000) / 48_000
    high = np.sin(2 * np.pi * 12_000 * time).astype(np.float32)
    assert np.abs(resampled(high, 48_000, RATE)[200:-200]).max() < 1e-4
    same = tones(1, 0.1)
    assert resampled(same, RATE, RATE) is same


@pytest.mark.parametrize("rate", [0, 3999, 192_001, 1 << 31])
def test_rates_that_are_refused(rate: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{rate} samples a second") as caught:
        check_rate(rate, RATE, PARAM)
    assert caught.value.param == PARAM


@given(st.integers(1, 3000), st.sampled_from([4001, 8000, 11_025, 37_800, 44_099, 44_100, 64_000]))
def test_lengths_agree(count: int, rate: int) -> None:
    check_rate(rate, RATE)
    found = resampled(np.ones(count, np.float32), rate, RATE)
    assert len(found) == resampled_length(count, rate, RATE)


def test_a_file_of_the_standard_library_with_two_channels() -> None:
    both = np.stack([np.full(10, 100), np.full(10, 300)], axis=1).astype("<i2")
    assert samples_of(BytesIO(wav(both)).getvalue()).tolist() == [200 / 32768] * 10
