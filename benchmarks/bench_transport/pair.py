"""Two processes, each on a core of its own, between which bytes are moved."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench_transport.raw.base import GRANULE

SEED = 0
_ANSWER_S = 120.0
_EXIT_S = 30.0


@dataclass(frozen=True)
class Case:
    """`blocks` there into `places` here, each of `GRANULE` bytes."""

    name: str
    blocks: list[int]
    places: list[int]

    @property
    def nbytes(self) -> int:
        return len(self.blocks) * GRANULE

    def ranges(self, *, whole: bool) -> list[list[int]]:
        """(there, here, bytes); as a single range if `whole`, which needs contiguous blocks."""
        if whole:
            return [[self.blocks[0] * GRANULE, self.places[0] * GRANULE, self.nbytes]]
        pairs = zip(self.blocks, self.places, strict=True)
        return [[there * GRANULE, here * GRANULE, GRANULE] for there, here in pairs]


def contiguous(name: str, count: int) -> Case:
    return Case(name, list(range(count)), list(range(count)))


def scattered(name: str, count: int, total: int) -> Case:
    """`count` of `total` blocks, no order on either side."""
    drawn = random.Random(SEED)
    return Case(name, drawn.sample(range(total), count), drawn.sample(range(total), count))


class _Process:
    def __init__(self, words: list[str], core: int, role: str) -> None:
        command = [sys.executable, "-m", "benchmarks.bench_transport.side", *words, str(core), role]
        environment = {"OMP_NUM_THREADS": "1", "UCX_NET_DEVICES": "lo", **os.environ}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._role = role

    def call(self, op: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        if not select.select([self._process.stdout], [], [], _ANSWER_S)[0]:
            raise TimeoutError(f"{self._role}: no answer to '{op}'")
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process has ended"}
        if "error" in answer:
            raise RuntimeError(f"{self._role}: {op}: {answer['error']}")
        return answer["value"]

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Pair:
    """`producer` holds the bytes, `consumer` wants them. All times are seconds."""

    def __init__(self, producer: _Process, consumer: _Process) -> None:
        self.producer = producer
        self.consumer = consumer

    def connect(self) -> None:
        """Each learns of the other."""
        self.producer.call("serve", who="ours")
        raw, ours = self.producer.call("exchange")
        other, _ = self.consumer.call("exchange")
        self.producer.call("connect", raw=other, ours={}, produces=True)
        self.consumer.call("connect", raw=raw, ours=ours, produces=False)
        self.producer.call("serve", who="")

    @contextlib.contextmanager
    def _served(self, who: str) -> Iterator[None]:
        self.producer.call("serve", who=who)
        yield
        self.producer.call("serve", who="")

    def read(self, who: str, ranges: list[list[int]], count: int) -> list[float]:
        """Reads by the library ("raw") or by our transport ("ours")."""
        with self._served("raw" if who == "raw" else "transport"):
            times: list[float] = self.consumer.call("read", who=who, ranges=ranges, count=count)
        return times

    def write(self, ranges: list[list[int]], count: int) -> list[float]:
        times: list[float] = self.producer.call("write", ranges=ranges, count=count)
        return times

    def fetch(self, case: Case, count: int) -> list[float]:
        """KV published, then fetched, one request after the other; the first is compared and not
        counted."""
        times = []
        with self._served("ours"):
            for i in range(count + 1):
                published, handle = self.producer.call("offer", blocks=case.blocks)
                arguments = {"blocks": case.blocks, "places": case.places, "check": i == 0}
                times.append(published + self.consumer.call("fetch", handle=handle, **arguments))
        return times[1:]

    def get(self, nbytes: int, count: int) -> tuple[list[float], list[float]]:
        """Embeddings put and got: times of the former and the latter."""
        put, name, params = self.producer.call("put", nbytes=nbytes, count=count)
        with self._served("ours"):
            got = self.consumer.call("get", name=name, params=params, count=count)
        return put, got

    def checksum(self, nbytes: int, count: int) -> list[float]:
        """BLAKE3 in the consumer."""
        times: list[float] = self.consumer.call("checksum", nbytes=nbytes, count=count)
        return times

    def copy(self, nbytes: int, count: int) -> list[float]:
        """memcpy in the producer."""
        times: list[float] = self.producer.call("copy", nbytes=nbytes, count=count)
        return times


@contextlib.contextmanager
def pair(transport: str, folder: Path, nbytes: int, cores: tuple[int, int]) -> Iterator[Pair]:
    """Both ends of a transport, connected; regions of `nbytes` each. Ends with nothing left over,
    or raises."""
    words = [transport, str(folder), str(nbytes)]
    processes = [_Process(words, cores[0], "producer"), _Process(words, cores[1], "consumer")]
    try:
        made = Pair(*processes)
        made.connect()
        yield made
        problems = [problem for one in processes for problem in one.call("integrity")]
        if problems:
            raise RuntimeError(f"{transport}: {problems}")
    finally:
        for process in processes:
            process.end()
