"""Workers of one model, each pinned to a core, and a light client that calls them directly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from benchmarks.common import random_model
from benchmarks.common.random_model import ModelShape
from protocol.generate import ENCODE_PATH, GENERATE_PATH, MSGPACK, encode_encode, encode_generate
from protocol.generate_answers import GenerateAnswer
from protocol.types import EncodeItem, EncodeRequest, GenerateRequest

SERVED = "bench"
_START_S = 120.0
_STOP_S = 20.0
_CALL_S = 120.0
_LOOK_S = 0.05
_TEXT = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
    "layer_types": ["full_attention"] * 8, "num_attention_heads": 8, "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}  # fmt: skip
_ROPE = {"mrope_section": [8, 12, 12], "rope_theta": 10000.0, "rope_type": "default"}
_VISION = {
    "hidden_size": 384, "intermediate_size": 768, "depth": 8, "num_heads": 6,
    "fullatt_block_indexes": [3, 7], "out_hidden_size": 512,
}  # fmt: skip


def build_model(base: Path, folder: Path) -> Path:
    """A model with 32 KiB of KV a token, and pictures of 224 × 224 pixels that take about as long
    to encode as to prefill."""
    text = {**_TEXT, "rope_parameters": _ROPE}
    return random_model.build(base, folder, ModelShape(text, _VISION, 224 * 224))


@dataclass(frozen=True)
class Worker:
    """A process of ours; `info` is what it says of itself."""

    url: str
    info: dict[str, Any]


@dataclass(frozen=True)
class Started:
    """A process, and where it writes what it says."""

    process: subprocess.Popen[bytes]
    log: Path


class Stages:
    """Starts workers; all are ended with the context that made this."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._namespace = f"bench-{uuid.uuid4().hex[:12]}"
        self._started: list[Started] = []

    def start(self, role: str, core: int, *flags: str) -> Started:
        command = [
            sys.executable, "-m", f"services.{role}", "--model", str(self._model), "--port", "0",
            "--served-model-name", SERVED, *flags,
        ]  # fmt: skip
        environment = {
            "UCX_NET_DEVICES": "lo", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **os.environ,
            "TRIPTYCH_NAMESPACE": self._namespace,
        }  # fmt: skip
        log = self._model.with_name(f"{role}-{len(self._started)}-{self._namespace}.log")
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=subprocess.STDOUT,
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )  # fmt: skip
        self._started.append(Started(process, log))
        return self._started[-1]

    def stop(self) -> None:
        for started in self._started:
            started.process.terminate()
        for started in self._started:
            try:
                started.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                started.process.kill()
                started.process.wait()


@contextlib.contextmanager
def stages(model: Path) -> Iterator[Stages]:
    made = Stages(model)
    try:
        yield made
    finally:
        made.stop()


async def ready(client: Client, started: Started) -> Worker:
    """The worker, once it says that it is ready. `RuntimeError` if it ends instead."""
    deadline = time.monotonic() + _START_S
    while started.process.poll() is None and time.monotonic() < deadline:
        for line in started.log.read_text().splitlines():
            if " ready on " in line:
                url = line.split(" ready on ")[1].strip()
                return Worker(url, await client.get(f"{url}/server_info"))
        await asyncio.sleep(_LOOK_S)
    raise RuntimeError(f"a worker did not start:\n{started.log.read_text()[-2000:]}")


class Client:
    """Calls workers as the proxy does."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def get(self, url: str) -> Any:
        async with self._session.get(url) as answer:
            return await answer.json()

    async def generate(self, worker: Worker, request: GenerateRequest) -> GenerateAnswer:
        """A whole answer. `RuntimeError` if it is none."""
        body = encode_generate(request, stream=False)
        headers = {"content-type": "application/json"}
        async with self._session.post(
            worker.url + GENERATE_PATH, data=body, headers=headers
        ) as answer:
            data = await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{worker.url}: {answer.status} {data[:500]!r}")
        return msgspec.json.decode(data, type=GenerateAnswer)

    async def stream(self, worker: Worker, request: GenerateRequest) -> AsyncGenerator[float, None]:
        """When each event with tokens came (`time.perf_counter`)."""
        body = encode_generate(request, stream=True)
        headers = {"content-type": "application/json"}
        async with self._session.post(
            worker.url + GENERATE_PATH, data=body, headers=headers
        ) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    event = msgspec.json.decode(line[6:], type=GenerateAnswer)
                    if event.error is not None:
                        raise RuntimeError(f"{worker.url}: {event.error}")
                    if event.choices:
                        yield time.perf_counter()

    async def encode(self, worker: Worker, item: EncodeItem, holder: str) -> float:
        """When a picture's embedding was stored (`time.perf_counter`)."""
        call = EncodeRequest(f"{holder}-{item.mm_hash[:16]}", [item], holder=holder)
        async with self._session.post(
            worker.url + ENCODE_PATH, data=encode_encode(call), headers={"content-type": MSGPACK}
        ) as answer:
            data = await answer.json()
        (output,) = data["outputs"]
        if not output.get("params"):
            raise RuntimeError(f"{worker.url}: {output}")
        return time.perf_counter()


@contextlib.asynccontextmanager
async def client() -> AsyncGenerator[Client, None]:
    timeout = aiohttp.ClientTimeout(total=_CALL_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield Client(session)
