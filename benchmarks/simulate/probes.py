"""Real workers as processes, timed over a grid by the processor time of their engines."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import aiohttp
import msgspec
import numpy as np
from PIL import Image

from benchmarks.common.pictures import encode_image
from protocol.generate import (
    ENCODE_PATH,
    GENERATE_PATH,
    MSGPACK,
    GenerateAnswer,
    encode_generate,
)
from protocol.types import EncodeItem, EncodeRequest, GenerateRequest, SamplingParams

_START_S = 240.0
_STOP_S = 60.0
_CALL_S = 240.0
_REPEATS = 3
_SIDES = (112, 224, 448)
_PATCH, _MERGED = 14, 28
_LENGTHS = (64, 256, 1024, 2048)
_BATCHES = (1, 4, 16)
_CONTEXTS = (64, 512, 1536)
_STEPS = (8, 40)
BLOCK = 16


@dataclass
class Points:
    """Rows of features with the milliseconds measured there."""

    rows: list[tuple[float, ...]] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)

    def add(self, row: tuple[float, ...], ms: float) -> None:
        self.rows.append(row)
        self.ms.append(ms)


@dataclass(frozen=True)
class _Worker:
    """A worker's address, and its engine's process id."""

    url: str
    engine: int

    def seconds(self) -> float:
        """Processor time of the engine so far (Linux)."""
        tasks = Path(f"/proc/{self.engine}/task").glob("*/schedstat")
        return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9


@contextmanager
def _worker(module: str, model: Path, namespace: str) -> Iterator[_Worker]:
    """A worker of its own process."""
    command = [sys.executable, "-m", module, "--model", str(model), "--port", "0"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TRIPTYCH_NAMESPACE": namespace}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--num-threads", "1", "--device", "cpu"],
            stdout=log, stderr=subprocess.STDOUT, text=True, env=env,
        )  # fmt: skip
        try:
            url = _ready(process, log)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            engine = next(int(c) for c in children if b"engine" in _command_line(c))
            yield _Worker(url, engine)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[str], log: IO[str]) -> str:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        log.seek(0)
        for line in log:
            if " ready on http" in line:
                return line.split(" ready on ")[1].strip()
        time.sleep(0.1)
    log.seek(0)
    raise RuntimeError(f"a worker did not start:\n{log.read()[-2000:]}")


def _command_line(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


class _Client:
    def __init__(self, session: aiohttp.ClientSession, rng: random.Random) -> None:
        self._session = session
        self._rng = rng
        self._asked = 0

    def tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(100, 600) for _ in range(count)]

    async def encode(self, worker: _Worker, side: int, count: int) -> float:
        """ms for `count` pictures that the encoder has not seen."""
        items = []
        for _ in range(count):
            self._asked += 1
            pixels = np.random.default_rng(self._asked).integers(0, 255, (side, side, 3), np.uint8)
            data = encode_image(Image.fromarray(pixels))
            grid = (1, side // _PATCH, side // _PATCH)
            length = (side // _MERGED) ** 2
            items.append(EncodeItem(f"{self._asked:064x}", "image", length, grid, data))
        body = msgspec.msgpack.encode(EncodeRequest(f"e{self._asked}", items))
        start = worker.seconds()
        headers = {"content-type": MSGPACK}
        async with self._session.post(
            worker.url + ENCODE_PATH, data=body, headers=headers
        ) as response:
            response.raise_for_status()
            answer = await response.json()
        failed = [o["error"] for o in answer["outputs"] if o.get("error")]
        if failed:
            raise RuntimeError(f"the encoder answered {failed[0]}")
        return (worker.seconds() - start) * 1e3

    async def generate(
        self, url: str, prompt: list[int], most: int, params: dict[str, Any] | None = None,
        emitted: dict[int, list[int]] | None = None,
    ) -> GenerateAnswer:  # fmt: skip
        self._asked += 1
        sampling = SamplingParams(max_tokens=most, temperature=0.0, ignore_eos=True)
        request = GenerateRequest(
            f"g{self._asked}", prompt, sampling, emitted=emitted or {}, kv_transfer_params=params
        )
        body, head = encode_generate(request, stream=False), {"content-type": "application/json"}
        async with self._session.post(url + GENERATE_PATH, data=body, headers=head) as response:
            response.raise_for_status()
            return msgspec.json.decode(await response.read(), type=GenerateAnswer)

    async def timed(self, worker: _Worker, prompts: Sequence[list[int]], most: int) -> float:
        """ms for answers of `most` tokens to all prompts at once."""
        start = worker.seconds()
        await asyncio.gather(*(self.generate(worker.url, prompt, most) for prompt in prompts))
        return (worker.seconds() - start) * 1e3


async def _encode_points(client: _Client, worker: _Worker) -> Points:
    points = Points()
    for side in _SIDES:
        await client.encode(worker, side, 1)
        for count in (1, 4):
            times = [await client.encode(worker, side, count) for _ in range(_REPEATS)]
            points.add((1.0, count * (side // _PATCH) ** 2), min(times))
    return points


async def _prefill_points(client: _Client, worker: _Worker) -> Points:
    """Whole prompts, and prompts of which a part is cached."""
    points = Points()
    await client.timed(worker, [client.tokens(64)], 1)
    for length in _LENGTHS:
        times = [
            await client.timed(worker, [client.tokens(length)], 1) for _ in range(_REPEATS)
        ]  # fmt: skip
        points.add((1.0, length, 0.0), min(times))
    for cached in (512, 1536):
        shared = client.tokens(cached)
        await client.timed(worker, [shared + client.tokens(BLOCK)], 1)
        for fresh in (64, 512):
            times = [
                await client.timed(worker, [shared + client.tokens(fresh)], 1)
                for _ in range(_REPEATS)
            ]
            points.add((1.0, fresh, cached), min(times))
    return points


async def _decode_points(client: _Client, worker: _Worker) -> Points:
    """Steps of a batch: what longer answers to the same prompts take more than shorter ones."""
    points = Points()
    few, many = _STEPS
    for context in _CONTEXTS:
        for batch in _BATCHES:
            prompts = [client.tokens(context) for _ in range(batch)]
            await client.timed(worker, prompts, 1)
            short = min([await client.timed(worker, prompts, few) for _ in range(_REPEATS)])
            long = min([await client.timed(worker, prompts, many) for _ in range(_REPEATS)])
            points.add((1.0, batch, batch * (context + (few + many) / 2)),
                       max(0.01, long - short) / (many - few))  # fmt: skip
    return points


async def _copy_points(
    client: _Client, prefill: _Worker, decode: _Worker, step_ms: float
) -> Points:
    """A decode worker's time for fetching KV over shared memory, less a step."""
    points = Points()
    for length in (256, 1024, 3584):
        times = []
        for _ in range(_REPEATS):
            prompt = client.tokens(length)
            answer = await client.generate(prefill.url, prompt, 2, {"do_remote_decode": True})
            first = {0: answer.choices[0].token_ids}
            start = decode.seconds()
            await client.generate(decode.url, prompt, 2, answer.kv_transfer_params, first)
            times.append(max(0.05, (decode.seconds() - start) * 1e3 - step_ms))
        points.add((1.0, -(-length // BLOCK)), min(times))
    return points


def _larger_pictures(model: Path, folder: Path) -> Path:
    """The model with pictures of up to 448 x 448 pixels left as large as they are."""
    copy = folder / "model"
    shutil.copytree(model, copy)
    path = copy / "preprocessor_config.json"
    options = json.loads(path.read_text())
    options["size"] = {"shortest_edge": min(_SIDES) ** 2, "longest_edge": max(_SIDES) ** 2}
    path.write_text(json.dumps(options))
    return copy


async def measure(model: Path) -> dict[str, Points]:
    """All grids; about a minute. The least of some repeats, for others may use the machine."""
    rng = random.Random(7)
    timeout = aiohttp.ClientTimeout(total=_CALL_S)
    namespace = f"calibrate-{os.getpid()}"
    async with aiohttp.ClientSession(timeout=timeout) as session:
        client = _Client(session, rng)
        with tempfile.TemporaryDirectory() as folder:
            larger = _larger_pictures(model, Path(folder))
            with _worker("services.encoder", larger, namespace) as encoder:
                encode = await _encode_points(client, encoder)
        with _worker("services.prefill", model, namespace) as first:
            prefill = await _prefill_points(client, first)
            with _worker("services.decode", model, namespace) as second:
                decode = await _decode_points(client, second)
                copies = await _copy_points(client, first, second, min(decode.ms))
    return {"encode": encode, "prefill": prefill, "decode": decode, "copy": copies}
