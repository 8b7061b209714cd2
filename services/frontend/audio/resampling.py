"""Samples at another rate, by libsoxr: as librosa does it, by which transformers' examples load
audio."""

from __future__ import annotations

import numpy as np
import soxr

from services.frontend.audio.formats import refused
from services.frontend.audio.wav import Samples

LEAST_RATE, MOST_RATE = 4000, 192_000
QUALITY = "soxr HQ"  # librosa's choice


def check_rate(rate: int, wanted: int, param: str | None = None) -> None:
    """`InvalidRequest` (`param`) if audio of this rate is not taken."""
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise refused(
            f"the audio has {rate} samples a second; send it at {LEAST_RATE} to {MOST_RATE}, best"
            f" at the model's, which is {wanted}",
            param,
        )


def resampled_length(count: int, rate: int, wanted: int) -> int:
    """Of `count` samples."""
    return -(-count * wanted // rate)


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """float32[n] at `rate` → float32[`resampled_length`] at `wanted`. libsoxr may end one sample
    sooner or later."""
    if rate == wanted:
        return samples
    found = soxr.resample(samples, rate, wanted, quality="HQ")
    length = resampled_length(len(samples), rate, wanted)
    made = np.zeros(length, np.float32)
    made[: len(found)] = found[:length]
    return made
