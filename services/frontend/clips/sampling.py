"""How many frames of a clip are taken, and how far apart: as transformers' processors of Qwen's
models do it, in numbers alone.

Source of the semantics: transformers 5.23, `Qwen2VLVideoProcessor.sample_frames`. Where that
refuses a clip for having fewer frames than asked for, divides by none, or is led behind the last
frame by rounding, all frames or all but that are taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
