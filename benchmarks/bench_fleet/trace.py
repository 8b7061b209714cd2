"""Requests of many users: system prompts that many share, pictures that come again, a question of
their own. They come at their times, however many wait."""

from __future__ import annotations

import base64
import bisect
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

ZIPF = 1.1
QUESTION_BYTES = 100
PICTURE_BYTES = 6_000


@dataclass(frozen=True)
class Ask:
    """`at` seconds after the trace's beginning."""

    at: float
    body: bytes


@dataclass(frozen=True)
class Drawing:
    """One seed, one set of prompts and pictures; every contender gets the same requests."""

    seed: int  # of all that is drawn
    output_tokens: int  # of each answer
    model: str = "mock"  # name by which it is asked for
    pictures: int = 600  # how many there are
    pictures_each: int = 3  # in a request
    systems: int = 24  # system prompts
    system_bytes: int = 1500  # of each of these
    urls: Sequence[str] = ()  # the pictures; noise that only a mock takes for a PNG if not given

    def trace(self, rate: float, seconds: float) -> list[Ask]:
        """Poisson arrivals for so long."""
        rng = random.Random(f"{self.seed} {rate}")
        pictures, systems = self.urls or self._noise(), self._systems()
        popular, prompts = _zipf(len(pictures)), _zipf(self.systems)
        asks, at = [], 0.0
        while (at := at + rng.expovariate(rate)) < seconds:
            chosen = [pictures[_draw(rng, popular)] for _ in range(self.pictures_each)]
            system = systems[_draw(rng, prompts)]
            asks.append(Ask(at, self._body(system, chosen, _words(rng, QUESTION_BYTES))))
        return asks

    def _body(self, system: str, pictures: list[str], question: str) -> bytes:
        parts: list[dict[str, object]] = [
            {"type": "image_url", "image_url": {"url": url}} for url in pictures
        ]
        body = {
            "model": self.model, "stream": True, "ignore_eos": True,
            "max_tokens": self.output_tokens,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": [*parts, {"type": "text", "text": question}]},
            ],
        }  # fmt: skip
        return json.dumps(body).encode()

    def _noise(self) -> list[str]:
        rng = random.Random(f"pictures {self.seed}")
        data = (
            base64.b64encode(rng.randbytes(PICTURE_BYTES)).decode() for _ in range(self.pictures)
        )
        return [f"data:image/png;base64,{one}" for one in data]

    def _systems(self) -> list[str]:
        rng = random.Random(f"systems {self.seed}")
        return [_words(rng, self.system_bytes) for _ in range(self.systems)]


def _words(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz     ", k=size))


def _zipf(count: int) -> list[float]:
    """Cumulated weights."""
    return list(itertools.accumulate((rank + 1) ** -ZIPF for rank in range(count)))


def _draw(rng: random.Random, weights: list[float]) -> int:
    return min(bisect.bisect(weights, rng.random() * weights[-1]), len(weights) - 1)
