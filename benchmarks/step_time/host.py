"""What the host does before a step while requests wait: the scheduling core without a model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.types import GenerateRequest, MMItem, SamplingParams
from services.mock.engine import Engine
from services.mock.runner import TimedRunner
from services.mock.settings import EngineSettings
from services.mock.timing import Noise, Timing

RUNNING = 16
PROMPT = 512
BLOCK = 16
PICTURE = 256  # tokens of a picture
WARM_STEPS = 3
STEPS = 24  # as many as requests that fill the pool can make without preemption


@dataclass(frozen=True)
class Queue:
    """`waiting` requests that cannot start, beside `RUNNING` that decode, because of `lacking`."""

    lacking: str
    waiting: int

    @property
    def name(self) -> str:
        return f"{self.waiting} requests wait for {self.lacking}"


def queues(counts: Sequence[int]) -> list[Queue]:
    return [Queue(lacking, n) for lacking in ("slots", "blocks", "pictures") for n in counts]


def measure(engine: Engine) -> float:
    """Median time in µs from the end of a step to the chunks of the next one."""
    runner = TimedRunner(engine.settings.vocabulary)
    generate = engine.core
    times = []
    for _ in range(WARM_STEPS + STEPS):
        begun = time.perf_counter()
        generate.advance()
        chunks = generate.begin()
        times.append((time.perf_counter() - begun) * 1e6)
        assert len(chunks) == RUNNING, "a request that should wait has started"
        generate.complete(chunks, runner.run(chunks))
    return statistics.median(times[WARM_STEPS:])


def filled(queue: Queue) -> Engine:
    """An engine in which all decode that are to decode, and a queue waits."""
    full = RUNNING * (PROMPT // BLOCK + 1) + PROMPT // BLOCK - 1
    engine = Engine(
        EngineSettings(
            block_size=BLOCK,
            max_num_seqs=RUNNING if queue.lacking == "slots" else 2 * RUNNING,
            num_blocks=full if queue.lacking == "blocks" else 4 * full,
            remote_embeddings=True,
        ),
        Timing(),
        Noise(),
        time.monotonic,
    )
    for number in range(RUNNING):
        engine.add(_text(f"running-{number}", number))
    while sum(request.num_left == 1 for request in engine.core.scheduler.running) < RUNNING:
        engine.core.step()
    make = _pictured if queue.lacking == "pictures" else _text
    for number in range(queue.waiting):
        engine.add(make(f"waiting-{number}", RUNNING + number))
    return engine


def _text(name: str, number: int) -> GenerateRequest:
    return GenerateRequest(name, [number % 1000] * PROMPT, SamplingParams(max_tokens=100))


def _pictured(name: str, number: int) -> GenerateRequest:
    item = MMItem(f"{number:064x}", "image", 0, PICTURE)
    tokens = [0] * PICTURE + [number % 1000] * (PROMPT - PICTURE)
    return GenerateRequest(name, tokens, SamplingParams(max_tokens=100), [item])
