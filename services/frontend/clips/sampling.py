"""How many frames of a clip are taken, and how far apart: as transformers' processors of Qwen's
models do it, in numbers alone.

Source of the semantics: transformers 5.23, `sample_frames` of `Qwen2VLVideoProcessor` (`sampled`)
and of `Qwen3VLVideoProcessor` (`spread`). Where these refuse a clip for having fewer frames than
asked for, take some twice then, divide by none, or are led behind the last frame by rounding, all
frames or all but that are taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from protocol.types import FrameSampling


@dataclass(frozen=True)
class Clip:
    """What a clip's file says: pixels of the upright frames, how many frames there are, and how
    many a second."""

    width: int
    height: int
    frames: int
    rate: float

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


@dataclass(frozen=True)
class Sampled:
    """`count` frames, one every `step`: those of index int(i * step)."""

    count: int
    step: float

    def seconds_between(self, clip: Clip, together: int) -> float:
        """From one group of `together` frames to the next."""
        return together / (self.count / clip.frames * clip.rate)


@dataclass(frozen=True)
class Spread:
    """The frames of these `indices`, the first and the last of the clip among them."""

    indices: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.indices)

    def times(self, clip: Clip, together: int) -> list[float]:
        """Of each group of `together` frames, the second halfway between its first and its last;
        the clip's last frame fills the last group."""
        padding = -self.count % together
        seconds = [index / clip.rate for index in (*self.indices, *self.indices[-1:] * padding)]
        starts = range(0, len(seconds), together)
        return [(seconds[i] + seconds[i + together - 1]) / 2 for i in starts]


Taken = Sampled | Spread


def spread(clip: Clip, asked: FrameSampling) -> Spread:
    """What is taken of a clip from its first to its last frame."""
    if asked.num_frames is not None:
        count = min(asked.num_frames, clip.frames)
    else:
        wanted = int(clip.frames / clip.rate * asked.fps)
        count = min(max(wanted, asked.min_frames), asked.max_frames, clip.frames)
    places = np.linspace(0, clip.frames - 1, count).round().astype(int)
    return Spread(tuple(places.tolist()))


def sampled(clip: Clip, asked: FrameSampling, together: int) -> Sampled:
    """What is taken of a clip. The model sees `together` frames as one, and as far as there are
    enough a multiple of it is taken."""
    count = _count(clip, asked, together)
    return Sampled(count, clip.frames / count)


def _count(clip: Clip, asked: FrameSampling, together: int) -> int:
    most = clip.frames // together * together
    if asked.num_frames is not None:
        count = min(round(asked.num_frames / together) * together, most)
    else:
        most = min(asked.max_frames // together * together, most)
        wanted = min(max(clip.seconds * asked.fps, asked.min_frames), most)
        count = math.floor(wanted / together) * together
    return max(count, min(clip.frames, together))
