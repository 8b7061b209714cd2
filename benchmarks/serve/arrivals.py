"""When requests are sent."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def arrival_times(
    count: int, rate: float, burstiness: float, rng: np.random.Generator
) -> list[float]:
    """Seconds from the start at which each of `count` requests is sent.

    Intervals are gamma distributed with mean 1/rate and shape `burstiness`: 1 is a Poisson process,
    infinity a constant interval. As in vllm bench serve, times are scaled so that the last request
    leaves at count/rate: runs of other seeds then offer exactly the same load.
    """
    if np.isinf(rate):
        return [0.0] * count
    times = np.cumsum(_intervals(np.full(count, rate), burstiness, rng))
    scaled: list[float] = (times * (count / rate / times[-1])).tolist()
    return scaled


def ramped_arrival_times(
    count: int,
    rates: tuple[float, float],
    strategy: str,
    burstiness: float,
    rng: np.random.Generator,
) -> list[float]:
    """As `arrival_times`, the rate going from the first to the second of `rates` (requests/s)
    `linear`ly or `exponential`ly with the request's index. Times are not scaled."""
    start, end = rates
    progress = np.linspace(0.0, 1.0, count)
    if strategy == "linear":
        momentary = start + (end - start) * progress
    else:
        momentary = start * (end / start) ** progress
    times: list[float] = np.cumsum(_intervals(momentary, burstiness, rng)).tolist()
    return times


def _intervals(rates: Floats, burstiness: float, rng: np.random.Generator) -> Floats:
    if np.isinf(burstiness):
        return 1.0 / rates
    return rng.gamma(burstiness, 1.0 / (rates * burstiness))
