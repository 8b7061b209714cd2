"""Sound made up here, as a WAV file and as the samples that transformers is given."""

import io
import struct
import wave
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
Samples = NDArray[np.float32]


@dataclass(frozen=True)
class AudioFile:
    """A file, as clients send it, and its samples in mono at `RATE`."""

    data: bytes
    samples: Samples


def audio_file(seed: int, seconds: float = 1.0) -> AudioFile:
    """A few tones that begin one after the other, and noise; another seed is another sound. 16 bits
    a sample."""
    heard = np.round(tones(seed, seconds) * 32767).astype("<i2")
    return AudioFile(wav(heard), (heard / 32768).astype(np.float32))


def tones(seed: int, seconds: float = 1.0, rate: int = RATE) -> Samples:
    """float32[seconds * rate], within ±1; no tone is above 3 kHz."""
    chance = np.random.default_rng(seed)
    count = round(seconds * rate)
    time = np.arange(count) / rate
    sound = np.zeros(count)
    for begin in range(4):
        pitch, loudness = chance.uniform(100, 3000), chance.uniform(0.05, 0.2)
        sound += loudness * np.sin(2 * np.pi * pitch * time) * (time >= begin * seconds / 4)
    return np.clip(sound, -1, 1).astype(np.float32)


def wav(frames: NDArray[np.generic], rate: int = RATE) -> bytes:
    """A file of integers [frames] or [frames, channels], as the standard library writes it."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1 if frames.ndim == 1 else frames.shape[1])
        writer.setsampwidth(frames.dtype.itemsize)
        writer.setframerate(rate)
        writer.writeframes(frames.tobytes())
    return file.getvalue()


def raw_wav(
    content: bytes, code: int, width: int, *, channels: int = 1, rate: int = RATE, size: int = -1
) -> bytes:
    """A file of any format of samples, behind chunks that say other things; `size`: what it says
    of the samples' bytes."""
    block = channels * width // 8
    form = struct.pack("<HHIIHH", code, channels, rate, rate * block, block, width)
    size = len(content) if size < 0 else size
    other = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # padded to an even size
    chunks = other + b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", size)
    body = b"WAVE" + chunks + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


def encoded(
    form: str, codec: str, rate: int = 16_000, channels: int = 1, seconds: float = 1.0
) -> bytes:
    """The tones of `tones(1)` as a file."""
    import av  # not at the top: other tests do without it

    file = io.BytesIO()
    layout = "mono" if channels == 1 else "stereo"
    with av.open(file, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=rate, layout=layout)
        heard = np.repeat(tones(1, seconds, rate)[None], channels, axis=0)
        resampler = av.AudioResampler(stream.format.name, layout, rate, stream.frame_size or 1024)
        frame = av.AudioFrame.from_ndarray(heard, format="fltp", layout=layout)
        frame.sample_rate = rate
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(piece))
        container.mux(stream.encode())
    return file.getvalue()
