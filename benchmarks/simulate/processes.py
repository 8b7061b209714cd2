"""Real workers as processes, timed by the processor time of their engines."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import aiohttp
import msgspec
import numpy as np
from PIL import Image

from benchmarks.common.pictures import encode_image
from protocol.generate import ENCODE_PATH, GENERATE_PATH, MSGPACK, encode_generate
from protocol.generate_answers import GenerateAnswer
from protocol.types import EncodeItem, EncodeRequest, GenerateRequest, SamplingParams
from services.frontend.render import Frontend

_START_S = 240.0
_STOP_S = 60.0
PATCH, _MERGED = 14, 28


@dataclass(frozen=True)
class TimedWorker:
    """A worker's address, and its engine's process id."""

    url: str
    engine: int

    def seconds(self) -> float:
        """Processor time of the engine so far (Linux)."""
        tasks = Path(f"/proc/{self.engine}/task").glob("*/schedstat")
        return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9


@contextmanager
def running_worker(module: str, model: Path, namespace: str) -> Iterator[TimedWorker]:
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
            yield TimedWorker(url, engine)
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


class TimedClient:
    """Calls one worker at a time, and tells the processor time that its engine took for a call:
    other processes of the machine do not count in it."""

    def __init__(self, session: aiohttp.ClientSession, rng: random.Random) -> None:
        self._session = session
        self._rng = rng
        self._asked = 0

    def tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(100, 600) for _ in range(count)]

    async def encode(self, worker: TimedWorker, frontend: Frontend, side: int, count: int) -> float:
        """ms for `count` pictures that the encoder has not seen."""
        items = []
        for _ in range(count):
            self._asked += 1
            pixels = np.random.default_rng(self._asked).integers(0, 255, (side, side, 3), np.uint8)
            data = encode_image(Image.fromarray(pixels))
            grid = (1, side // PATCH, side // PATCH)
            length = (side // _MERGED) ** 2
            items.append(EncodeItem(frontend.name_of(data), "image", length, grid, data))
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

    async def timed(self, worker: TimedWorker, prompts: Sequence[list[int]], most: int) -> float:
        """ms for answers of `most` tokens to all prompts at once."""
        start = worker.seconds()
        await asyncio.gather(*(self.generate(worker.url, prompt, most) for prompt in prompts))
        return (worker.seconds() - start) * 1e3
