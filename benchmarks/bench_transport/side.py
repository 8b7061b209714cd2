"""One of the two processes between which `bench_transport` moves bytes.

    python -m benchmarks.bench_transport.side TRANSPORT FOLDER NBYTES CORE producer|consumer

Holds the library alone ("raw") and our connectors ("ours"), and does what lines of JSON on stdin
say: {"op": name, ...} → {"value": …}. End of input ends it.
"""

from __future__ import annotations

import base64
import json
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from benchmarks.bench_transport.ours import Ours
from benchmarks.bench_transport.raw.base import GRANULE, Bytes, Raw
from benchmarks.bench_transport.raw.files import RawFiles, RawShm
from benchmarks.bench_transport.raw.nixl_agent import RawNixl
from benchmarks.bench_transport.raw.ucx_worker import RawUcx


def make(transport: str, folder: Path, nbytes: int) -> Raw:
    """The library beneath a transport, with the settings that the transport gives it."""
    if transport == "shm":
        return RawShm(folder, nbytes)
    if transport == "shared_storage":
        return RawFiles(folder, nbytes)
    if transport == "nixl":
        from connectors.transports.nixl_agent import PROGRESS_DELAY_US

        return RawNixl(nbytes, PROGRESS_DELAY_US)
    from connectors.transports import ucx_settings

    return RawUcx(nbytes, ucx_settings.settings("127.0.0.1"), *ucx_settings.load())


SEED = 0
_LOOK = 64  # turns of serving between two looks for a command


class Side:
    """The operations, by name. The producer's regions hold a pattern, the consumer's zeros."""

    def __init__(self, transport: str, folder: Path, nbytes: int, *, produces: bool) -> None:
        self._raw = make(transport, folder, nbytes)
        self._ours = Ours(transport, folder / "ours", nbytes, produces=produces)
        self._serving = ""
        if produces:
            self._raw.memory[:] = self._ours.memory[:] = pattern(nbytes)

    def exchange(self) -> list[Any]:
        """What the other side must know of the library, and of us."""
        return [base64.b64encode(self._raw.describe()).decode(), self._ours.endpoint()]

    def connect(self, raw: str, ours: dict[str, Any], produces: bool) -> None:
        """Both sides need each other's library; only a consumer has to know of our producer."""
        self._raw.connect(base64.b64decode(raw))
        if not produces:
            self._ours.connect(ours)

    def serve(self, who: str) -> None:
        """The side to serve until told otherwise: "raw" and "transport" without pause, "ours" as
        an engine does, "" for none."""
        self._serving = who

    def turn(self) -> bool:
        """Serve a while; False if no side is to be served."""
        if self._serving == "ours":
            self._ours.turn()
        elif self._serving:
            turn = self._raw.serve if self._serving == "raw" else self._ours.transport.poll
            for _ in range(_LOOK):
                turn()
        return bool(self._serving)

    def read(self, who: str, ranges: list[list[int]], count: int) -> list[float]:
        """Seconds of each read, after one that is not counted and whose bytes are compared."""
        one = self._raw if who == "raw" else self._ours
        one.memory[:] = 0
        one.read(ranges)
        source = pattern(one.memory.size)
        for there, here, size in ranges:
            if not np.array_equal(one.memory[here : here + size], source[there : there + size]):
                raise ValueError(f"{who}: bytes at {here} are not what was read")
        return [one.read(ranges) for _ in range(count)]

    def write(self, ranges: list[list[int]], count: int) -> list[float]:
        return [self._raw.write(ranges) for _ in range(count)]

    def put(self, nbytes: int, count: int) -> list[Any]:
        """Seconds of each put, and the name and handle of the last."""
        puts = [self._ours.put(nbytes) for _ in range(count)]
        return [[seconds for seconds, _, _ in puts], *puts[-1][1:]]

    def get(self, name: str, params: dict[str, Any], count: int) -> list[float]:
        self._ours.memory[:] = pattern(self._ours.memory.size)
        self._ours.get(name, params, check=True)
        return [self._ours.get(name, params) for _ in range(count)]

    def offer(self, blocks: list[int]) -> list[Any]:
        while self._ours.kv.producer.offered:
            self._ours.turn(0)
        return list(self._ours.offer(blocks))

    def fetch(
        self, handle: dict[str, Any], blocks: list[int], places: list[int], check: bool
    ) -> float:
        """Seconds of one fetch; with `check` the bytes are compared."""
        if not check:
            return self._ours.fetch(handle, places)
        memory = self._ours.memory.reshape(-1, GRANULE)
        memory[:] = 0
        seconds = self._ours.fetch(handle, places)
        source = pattern(memory.size).reshape(memory.shape)
        if not np.array_equal(memory[places], source[blocks]):
            raise ValueError("KV blocks are not what was published")
        return seconds

    def checksum(self, nbytes: int, count: int) -> list[float]:
        return [_timed(lambda: blake3(self._raw.memory[:nbytes].data)) for _ in range(count)]

    def copy(self, nbytes: int, count: int) -> list[float]:
        """Seconds of copying so many bytes within this process (memcpy)."""
        source, target = self._ours.memory[:nbytes], self._raw.memory[:nbytes]
        return [_timed(lambda: np.copyto(target, source)) for _ in range(count)]

    def integrity(self) -> list[str]:
        return self._ours.ec.check_integrity() + self._ours.kv.check_integrity()

    def close(self) -> None:
        self._ours.close()
        self._raw.close()


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def pattern(nbytes: int) -> Bytes:
    return np.random.default_rng(SEED).integers(0, 256, nbytes, np.uint8)


def _answer(side: Side, line: bytes) -> dict[str, Any]:
    arguments = json.loads(line)
    try:
        return {"value": getattr(side, arguments.pop("op"))(**arguments)}
    except Exception as error:  # the other process raises it again
        return {"error": f"{type(error).__name__}: {error}"}


def _loop(side: Side, answers: int) -> None:
    waiting = b""
    while True:
        if side.turn() and not select.select([0], [], [], 0)[0]:
            continue
        data = os.read(0, 1 << 20)
        if not data:
            return
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            os.write(answers, json.dumps(_answer(side, line)).encode() + b"\n")


def main() -> None:
    transport, folder, nbytes, core, role = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries that print must not do so among the answers
    produces = role == "producer"
    side = Side(transport, Path(folder), int(nbytes), produces=produces)
    try:
        _loop(side, answers)
    finally:
        side.close()


if __name__ == "__main__":
    main()
