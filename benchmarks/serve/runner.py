"""When requests are sent; sends all of them and collects what comes of them."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.serve.args import Settings
from benchmarks.serve.client import Client, Outcome, Prepared

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


READY_POLL_S = 1.0
PROGRESS_S = 0.5


class NotReadyError(RuntimeError):
    """The server gave no good answer in time."""


@dataclass(frozen=True)
class Run:
    """A finished measurement: outcomes in the order of the requests."""

    outcomes: list[Outcome]
    duration: float  # seconds


def planned_times(settings: Settings, count: int) -> list[float]:
    """Seconds from the start at which each request leaves."""
    rng = np.random.default_rng(settings.seed)
    if settings.ramp_up_strategy is None:
        return arrival_times(count, settings.request_rate, settings.burstiness, rng)
    rates = (settings.ramp_up_start_rps, settings.ramp_up_end_rps)
    return ramped_arrival_times(count, rates, settings.ramp_up_strategy, settings.burstiness, rng)


async def wait_until_ready(client: Client, request: Prepared, timeout: float) -> None:
    """Repeats a request until it succeeds. Raises NotReadyError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (outcome := await client.send(request)).success:
        if time.monotonic() + READY_POLL_S > deadline:
            raise NotReadyError(f"no good answer within {timeout:g} s: {outcome.error}")
        await asyncio.sleep(READY_POLL_S)


async def run(client: Client, requests: Sequence[Prepared], settings: Settings) -> Run:
    """Sends every request at its planned time, at most `max_concurrency` at once."""
    times = planned_times(settings, len(requests))
    return await _run(client, requests, times, settings, "requests")


async def warm_up(client: Client, requests: Sequence[Prepared], settings: Settings) -> Run:
    """Sends requests as fast as `max_concurrency` lets them, for nothing but their effect."""
    return await _run(client, requests, [0.0] * len(requests), settings, "warm-up")


async def _run(
    client: Client,
    requests: Sequence[Prepared],
    times: Sequence[float],
    settings: Settings,
    name: str,
) -> Run:
    limit = _limit(settings.max_concurrency)
    tasks: list[asyncio.Task[Outcome]] = []
    with (
        tqdm(
            total=len(requests), desc=name, mininterval=PROGRESS_S, disable=settings.disable_tqdm
        ) as progress,
        _frozen_heap(),
    ):
        start = time.perf_counter()
        for request, planned in zip(requests, times, strict=True):
            await _sleep_until(start + planned)
            task = asyncio.create_task(_send(client, request, limit, time.perf_counter()))
            task.add_done_callback(lambda _: progress.update())
            tasks.append(task)
        outcomes = await asyncio.gather(*tasks)
        duration = time.perf_counter() - start
    return Run(list(outcomes), duration)


async def _send(
    client: Client, request: Prepared, limit: AbstractAsyncContextManager[None], arrived: float
) -> Outcome:
    async with limit:
        outcome = await client.send(request)
    outcome.queued = outcome.start - arrived
    return outcome


def _limit(max_concurrency: int | None) -> AbstractAsyncContextManager[None]:
    return (
        contextlib.nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    )


async def _sleep_until(moment: float) -> None:
    delay = moment - time.perf_counter()
    if delay > 0:
        await asyncio.sleep(delay)


@contextlib.contextmanager
def _frozen_heap() -> Iterator[None]:
    """Hides the dataset from the garbage collector, whose pauses would look like the server's."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
