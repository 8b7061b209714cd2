"""Traces made up to be like what fleets see. Deterministic by seed; arrivals at one request/s."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType

from benchmarks.simulate.prompts import Prompt, TraceRequest

Arrivals = Iterator[float]
_CONTENT = 1 << 62


class Zipf:
    """Ranks 0 to `count` - 1, rank k drawn in proportion to 1 / (k + 1)**`exponent`."""

    def __init__(self, count: int, exponent: float) -> None:
        weights = ((k + 1.0) ** -exponent for k in range(count))
        self._total = list(itertools.accumulate(weights))

    def draw(self, rng: random.Random) -> int:
        return bisect.bisect_left(self._total, rng.random() * self._total[-1])


def poisson(rng: random.Random, rate: float = 1.0) -> Arrivals:
    time = 0.0
    while True:
        time += rng.expovariate(rate)
        yield time


def bursts(rng: random.Random) -> Arrivals:
    """One request/s on the whole: calm at 0.6, and every 120 requests or so a burst of some 40 at
    4 requests/s."""
    time, left, rate = 0.0, 80, 0.6
    while True:
        if left == 0:
            burst = rate < 1.0
            left = rng.randint(30, 50) if burst else rng.randint(60, 100)
            rate = 4.0 if burst else 0.6
        left -= 1
        time += rng.expovariate(rate)
        yield time


def lengths(rng: random.Random, median: float, spread: float, low: int, high: int) -> int:
    """Log-normal, cut off."""
    return max(low, min(high, round(rng.lognormvariate(0.0, spread) * median)))


def _fresh(rng: random.Random) -> int:
    return rng.randrange(_CONTENT)


def chat(count: int, block_size: int, seed: int, arrivals: str = "poisson") -> list[TraceRequest]:
    """Single questions behind one of 40 system prompts of 300 to 2500 tokens, Zipf 1.0."""
    rng = random.Random(seed)
    systems = []
    for _ in range(40):
        prompt = Prompt(block_size)
        prompt.add(_fresh(rng), rng.randint(300, 2500))
        systems.append(prompt)
    zipf, times = Zipf(len(systems), 1.0), (bursts if arrivals == "bursts" else poisson)(rng)
    found = []
    for i in range(count):
        prompt = systems[zipf.draw(rng)].copy()
        prompt.add(_fresh(rng), lengths(rng, 200, 0.8, 16, 2000))
        output = lengths(rng, 150, 0.7, 8, 800)
        found.append(prompt.request(f"r{i}", next(times), _fresh(rng), output, ""))
    return found


def bursty(count: int, block_size: int, seed: int) -> list[TraceRequest]:
    """As `chat`, in bursts."""
    return chat(count, block_size, seed, "bursts")


def multi_turn(count: int, block_size: int, seed: int) -> list[TraceRequest]:
    """Conversations of 2 to 12 turns that grow to some thousand tokens, behind one of 8 system
    prompts; the next turn comes 20 to 120 requests' time after the last."""
    rng = random.Random(seed)
    systems = [(_fresh(rng), rng.randint(200, 800)) for _ in range(8)]
    found: list[TraceRequest] = []
    starts, number = poisson(rng, 1.0 / 7.0), 0
    begin = -7.0 * 70.0
    while True:
        start = begin + next(starts)
        if start > count * 1.4:
            break
        number += 1
        prompt = Prompt(block_size)
        prompt.add(*rng.choice(systems))
        time = start
        for _ in range(rng.randint(2, 12)):
            prompt.add(_fresh(rng), lengths(rng, 150, 1.0, 16, 2500))
            output = lengths(rng, 200, 0.7, 8, 1000)
            request = prompt.request("", time, _fresh(rng), output, f"s{number}")
            found.append(request)
            time += rng.uniform(20.0, 120.0)
    return _from_zero(found, count)


def pictures(count: int, block_size: int, seed: int) -> list[TraceRequest]:
    """1 to 4 pictures of 256 to 1296 tokens each, drawn by Zipf 0.9 from 1500, behind a short
    system prompt and before a short question."""
    rng = random.Random(seed)
    system = Prompt(block_size)
    system.add(_fresh(rng), 2 * block_size)
    album = [(_fresh(rng), rng.choice((256, 400, 576, 784, 1296))) for _ in range(1500)]
    zipf, times = Zipf(len(album), 0.9), poisson(rng)
    found = []
    for i in range(count):
        prompt = system.copy()
        for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
            prompt.add_picture(*album[zipf.draw(rng)])
        prompt.add(_fresh(rng), lengths(rng, 60, 0.7, 8, 400))
        output = lengths(rng, 100, 0.7, 8, 500)
        found.append(prompt.request(f"r{i}", next(times), _fresh(rng), output, ""))
    return found


def documents(count: int, block_size: int, seed: int) -> list[TraceRequest]:
    """Questions about documents of 2000 to 24000 tokens; a document is asked about 1 to 6 times
    within a while."""
    rng = random.Random(seed)
    found: list[TraceRequest] = []
    starts = poisson(rng, 1.0 / 3.5)
    begin = -3.5 * 40.0
    while True:
        start = begin + next(starts)
        if start > count * 1.4:
            break
        document = Prompt(block_size)
        document.add(_fresh(rng), lengths(rng, 6000, 0.7, 2000, 24000))
        time = start
        for _ in range(rng.randint(1, 6)):
            prompt = document.copy()
            prompt.add(_fresh(rng), lengths(rng, 60, 0.7, 8, 400))
            output = lengths(rng, 180, 0.6, 16, 800)
            found.append(prompt.request("", time, _fresh(rng), output, ""))
            time += rng.uniform(10.0, 80.0)
    return _from_zero(found, count)


def _from_zero(found: list[TraceRequest], count: int) -> list[TraceRequest]:
    """The first `count` requests after time 0, in order, at one request/s on the whole."""
    kept = sorted((r for r in found if r.arrival >= 0.0), key=lambda r: r.arrival)[:count]
    pace = len(kept) / kept[-1].arrival
    for number, request in enumerate(kept):
        request.name = f"r{number}"
        request.arrival *= pace
    return kept


Maker = Callable[[int, int, int], Sequence[TraceRequest]]
TRACES: MappingProxyType[str, Maker] = MappingProxyType(
    {
        "chat": chat,
        "multi_turn": multi_turn,
        "pictures": pictures,
        "documents": documents,
        "bursty": bursty,
    }
)
