"""Clips drawn and encoded here, and all their frames as a reader of the file sees them."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]


@dataclass(frozen=True)
class DrawnClip:
    """A file, as clients send it."""

    data: bytes

    @cached_property
    def decoded(self) -> tuple[Frames, float]:
        """(uint8[frames, height, width, 3], frames a second)."""
        import av  # not at the top: other tests do without it

        with av.open(BytesIO(self.data)) as container:
            stream = container.streams.video[0]
            rate = stream.average_rate
            assert rate is not None
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return np.stack(frames), float(rate)


def clip(
    seed: int,
    frames: int = 12,
    rate: int | Fraction = 4,
    size: tuple[int, int] = (64, 48),
    *,
    codec: str = "mpeg4",
    form: str = "mp4",
    movflags: str = "",
) -> DrawnClip:
    """Tiles of changing colours; another seed is another clip. `size`: width and height.
    `movflags`: an option of MP4."""
    import av  # not at the top, either

    width, height = size
    options = {"movflags": movflags} if movflags else {}
    colours = np.random.default_rng(seed).integers(0, 255, (frames, 4, 4, 3), dtype=np.uint8)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "clip"
        with av.open(str(file), "w", format=form, options=options) as container:
            stream: Any = container.add_stream(codec, rate=rate)
            stream.width, stream.height = width, height
            stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
            for tiles in colours:
                pixels = tiles.repeat(-(-height // 4), axis=0).repeat(-(-width // 4), axis=1)
                frame = av.VideoFrame.from_ndarray(pixels[:height, :width].copy(), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return DrawnClip(file.read_bytes())


def sound(seconds: int = 1, shown: int = 0) -> bytes:
    """A file of a known container with silence in it, and so many black frames to see."""
    import av  # not at the top, either

    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        seen: Any = container.add_stream("mpeg4", rate=1) if shown else None
        stream: Any = container.add_stream("aac", rate=8000)
        samples = np.zeros((1, 8000 * seconds), dtype=np.float32)
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
        frame.sample_rate = 8000
        for _ in range(shown):
            container.mux(seen.encode(av.VideoFrame(640, 480, "yuv420p")))
        container.mux(stream.encode(frame))
        for added in (stream, seen) if shown else (stream,):
            container.mux(added.encode())
    return file.getvalue()
