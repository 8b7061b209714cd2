"""Clips and sounds of a few bytes, made here. A clip needs the extra video (PyAV)."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np

_SIZE = (64, 48)
_RATE = 4
_SOUND_RATE = 16_000


def clip(seed: int, frames: int = 8) -> bytes:
    """An MP4 of coloured tiles, four frames a second; another seed is another clip."""
    import av

    width, height = _SIZE
    colours = np.random.default_rng(seed).integers(0, 255, (frames, 4, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=_RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.thread_count = 1
        for tiles in colours:
            pixels = tiles.repeat(height // 4, axis=0).repeat(width // 4, axis=1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def tone(seconds: float = 0.2) -> bytes:
    """A WAV of 440 Hz."""
    times = np.arange(int(seconds * _SOUND_RATE)) / _SOUND_RATE
    samples = (8000 * np.sin(2 * np.pi * 440 * times)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(_SOUND_RATE)
        sound.writeframes(samples.tobytes())
    return file.getvalue()
