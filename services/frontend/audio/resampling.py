"""Samples at another rate: band-limited interpolation with a Kaiser-windowed sinc.

Source: J. O. Smith, "Digital Audio Resampling" (https://ccrma.stanford.edu/~jos/resample/). The
constants are those that resampy calls kaiser_best. Both rates are small multiples of their greatest
common divisor, so that one small table of weights serves all samples.
"""

from __future__ import annotations

from math import ceil, gcd

import numpy as np
from numpy.typing import NDArray

from services.frontend.audio.formats import refused

LEAST_RATE, MOST_RATE = 4000, 192_000
_MOST_RATIO = 640  # of both rates to their greatest common divisor; 11025 to 16000 has that
_ZEROS = 64  # crossings of the sinc on each side
_ROLLOFF = 0.9475937167399596  # of the lower of both Nyquist frequencies
_BETA = 14.769656459379492
_PIECE = 1 << 22  # values of overlapping pieces that are looked at a time

Samples = NDArray[np.float32]


def check_rate(rate: int, wanted: int, param: str | None = None) -> None:
    """`InvalidRequest` (`param`) if `resampled` does not take these."""
    ratio = max(rate, wanted) // gcd(rate, wanted)
    if not LEAST_RATE <= rate <= MOST_RATE or ratio > _MOST_RATIO:
        raise refused(
            f"the audio has {rate} samples a second; send it at a usual rate from {LEAST_RATE} to"
            f" {MOST_RATE}, best at the model's, which is {wanted}",
            param,
        )


def resampled_length(count: int, rate: int, wanted: int) -> int:
    """Of `count` samples."""
    return -(-count * wanted // rate)


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """float32[n] at `rate` → float32[`resampled_length`] at `wanted`, both as of `check_rate`."""
    if rate == wanted:
        return samples
    shared = gcd(rate, wanted)
    old, new = rate // shared, wanted // shared
    weights, reach = _weights(old, new)
    blocks = ceil(len(samples) / old)
    padded = np.zeros(blocks * old + 2 * reach, np.float32)
    padded[reach : reach + len(samples)] = samples
    windows = np.lib.stride_tricks.sliding_window_view(padded, old + 2 * reach)[::old]
    out = np.empty((blocks, new), np.float32)
    at_once = max(1, _PIECE // windows.shape[1])
    for begin in range(0, blocks, at_once):
        piece = slice(begin, begin + at_once)
        out[piece] = windows[piece] @ weights
    return out.reshape(-1)[: resampled_length(len(samples), rate, wanted)]


def _weights(old: int, new: int) -> tuple[NDArray[np.float32], int]:
    """float32[old + 2 * reach, new]: how the samples around a block of `old` make `new` ones; and
    `reach`, how many before and behind the block are looked at."""
    cutoff = min(old, new) * _ROLLOFF  # half-waves in a block
    reach = ceil(_ZEROS * old / cutoff)
    there = np.arange(-reach, old + reach) / old
    apart = (there[:, None] - np.arange(new)[None] / new) * cutoff
    window = np.i0(_BETA * np.sqrt(np.maximum(0.0, 1 - (apart / _ZEROS) ** 2))) / np.i0(_BETA)
    weights = np.sinc(apart) * window * (np.abs(apart) <= _ZEROS) * (cutoff / old)
    return weights.astype(np.float32), reach
