"""Workloads whose shape follows from a seed, at one request per second on the whole.

They do not end. Contents are random numbers: what is equal, is so because a workload says so.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from types import MappingProxyType

from benchmarks.simulate.prompts import Prompt, Session, TraceRequest

Times = Iterator[float]
_CONTENT = 1 << 62


class Zipf:
    """Ranks 0 to `count` - 1, rank k drawn in proportion to 1 / (k + 1)**`exponent`."""

    def __init__(self, count: int, exponent: float) -> None:
        weights = ((k + 1.0) ** -exponent for k in range(count))
        self._total = list(itertools.accumulate(weights))

    def draw(self, rng: random.Random) -> int:
        return bisect.bisect_left(self._total, rng.random() * self._total[-1])


def poisson(rng: random.Random, rate: float = 1.0) -> Times:
    time = 0.0
    while True:
        time += rng.expovariate(rate)
        yield time


def bursts(rng: random.Random) -> Times:
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


def _single(time: float, request: TraceRequest) -> Session:
    return Session(time, (request,))


def chat(block_size: int, seed: int, arrivals: str = "poisson") -> Iterator[Session]:
    """Single questions behind one of 40 system prompts of 300 to 2500 tokens, Zipf 1.0."""
    rng = random.Random(seed)
    systems = []
    for _ in range(40):
        prompt = Prompt(block_size)
        prompt.add(_fresh(rng), rng.randint(300, 2500))
        systems.append(prompt)
    zipf = Zipf(len(systems), 1.0)
    for number, time in enumerate((bursts if arrivals == "bursts" else poisson)(rng)):
        prompt = systems[zipf.draw(rng)].copy()
        prompt.add(_fresh(rng), lengths(rng, 200, 0.8, 16, 2000))
        output = lengths(rng, 150, 0.7, 8, 800)
        yield _single(time, prompt.request(f"r{number}", _fresh(rng), output))


def bursty(block_size: int, seed: int) -> Iterator[Session]:
    """As `chat`, in bursts."""
    return chat(block_size, seed, "bursts")


def multi_turn(block_size: int, seed: int) -> Iterator[Session]:
    """Conversations of 2 to 12 turns that grow to some thousand tokens, behind one of 8 system
    prompts. Users think 1 to 30 s, half of them less than 4 s."""
    rng = random.Random(seed)
    systems = [(_fresh(rng), rng.randint(200, 800)) for _ in range(8)]
    for number, start in enumerate(poisson(rng, 1.0 / 7.0)):
        prompt = Prompt(block_size)
        prompt.add(*rng.choice(systems))
        turns = []
        for turn in range(rng.randint(2, 12)):
            prompt.add(_fresh(rng), lengths(rng, 150, 1.0, 16, 2500))
            think = min(30.0, max(1.0, 4.0 * rng.lognormvariate(0.0, 0.8)))
            output = lengths(rng, 200, 0.7, 8, 1000)
            name = f"s{number}.{turn}"
            turns.append(prompt.request(name, _fresh(rng), output, f"s{number}", think))
        yield Session(start, tuple(turns))


def agents(block_size: int, seed: int) -> Iterator[Session]:
    """Programs with one of 6 long system prompts (6000 to 10000 tokens of tools and rules), that
    ask 4 to 20 times: results of 20 to 1500 tokens in, calls of 10 to 300 tokens out. Their tools
    take 0.2 to 5 s, half of the times less than 0.8 s."""
    rng = random.Random(seed)
    systems = [(_fresh(rng), rng.randint(6000, 10000)) for _ in range(6)]
    for number, start in enumerate(poisson(rng, 1.0 / 12.0)):
        prompt = Prompt(block_size)
        prompt.add(*rng.choice(systems))
        turns = []
        for turn in range(rng.randint(4, 20)):
            prompt.add(_fresh(rng), lengths(rng, 200, 1.0, 20, 1500))
            think = min(5.0, max(0.2, 0.8 * rng.lognormvariate(0.0, 0.8)))
            output = lengths(rng, 50, 0.7, 10, 300)
            name = f"s{number}.{turn}"
            turns.append(prompt.request(name, _fresh(rng), output, f"s{number}", think))
        yield Session(start, tuple(turns))


def pictures(block_size: int, seed: int, album: int = 1500) -> Iterator[Session]:
    """1 to 4 pictures of 256 to 1296 tokens each, drawn by Zipf 0.9 from an album, behind a short
    system prompt and before a short question. An album of 0: every picture is new."""
    rng = random.Random(seed)
    system = Prompt(block_size)
    system.add(_fresh(rng), 2 * block_size)
    sizes = (256, 400, 576, 784, 1296)
    known = [(_fresh(rng), rng.choice(sizes)) for _ in range(album)]
    zipf = Zipf(album, 0.9) if album else None
    for number, time in enumerate(poisson(rng)):
        prompt = system.copy()
        for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
            drawn = known[zipf.draw(rng)] if zipf else (_fresh(rng), rng.choice(sizes))
            prompt.add_picture(*drawn)
        prompt.add(_fresh(rng), lengths(rng, 60, 0.7, 8, 400))
        output = lengths(rng, 100, 0.7, 8, 500)
        yield _single(time, prompt.request(f"r{number}", _fresh(rng), output))


def new_pictures(block_size: int, seed: int) -> Iterator[Session]:
    """As `pictures`, but no picture is sent twice."""
    return pictures(block_size, seed, 0)


def documents(block_size: int, seed: int) -> Iterator[Session]:
    """Questions about documents of 2000 to 24000 tokens. 1 to 6 users ask about a document, each
    on their own, in the time in which 10 to 80 other requests come."""
    rng = random.Random(seed)
    asked: list[tuple[float, int, TraceRequest]] = []
    number = 0
    for start in poisson(rng, 1.0 / 3.5):
        while asked and asked[0][0] <= start:
            time, _, request = heapq.heappop(asked)
            yield _single(time, request)
        document = Prompt(block_size)
        document.add(_fresh(rng), lengths(rng, 6000, 0.7, 2000, 24000))
        time = start
        for _ in range(rng.randint(1, 6)):
            prompt = document.copy()
            prompt.add(_fresh(rng), lengths(rng, 60, 0.7, 8, 400))
            output = lengths(rng, 180, 0.6, 16, 800)
            number += 1
            heapq.heappush(asked, (time, number, prompt.request(f"r{number}", _fresh(rng), output)))
            time += rng.uniform(10.0, 80.0)


Maker = Callable[[int, int], Iterator[Session]]
TRACES: MappingProxyType[str, Maker] = MappingProxyType(
    {
        "chat": chat,
        "multi_turn": multi_turn,
        "pictures": pictures,
        "new_pictures": new_pictures,
        "documents": documents,
        "bursty": bursty,
        "agents": agents,
    }
)
