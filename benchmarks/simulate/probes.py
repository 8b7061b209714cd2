"""The grids over which real workers are timed."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from benchmarks.simulate.processes import PATCH, TimedClient, TimedWorker, running_worker
from services.frontend.options import FrontendOptions
from services.frontend.render import Frontend

_CALL_S = 240.0
_REPEATS = 3
_SIDES = (112, 224, 448)
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


async def _encode_points(client: TimedClient, worker: TimedWorker, frontend: Frontend) -> Points:
    points = Points()
    for side in _SIDES:
        await client.encode(worker, frontend, side, 1)
        for count in (1, 4):
            times = [await client.encode(worker, frontend, side, count) for _ in range(_REPEATS)]
            points.add((1.0, count * (side // PATCH) ** 2), min(times))
    return points


async def _prefill_points(client: TimedClient, worker: TimedWorker) -> Points:
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


async def _decode_points(client: TimedClient, worker: TimedWorker) -> Points:
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
    client: TimedClient, prefill: TimedWorker, decode: TimedWorker, step_ms: float
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
        client = TimedClient(session, rng)
        with tempfile.TemporaryDirectory() as folder:
            larger = _larger_pictures(model, Path(folder))
            with running_worker("services.encoder", larger, namespace) as encoder:
                frontend = Frontend.load(FrontendOptions(model=str(larger)).to_config())
                encode = await _encode_points(client, encoder, frontend)
        with running_worker("services.prefill", model, namespace) as first:
            prefill = await _prefill_points(client, first)
            with running_worker("services.decode", model, namespace) as second:
                decode = await _decode_points(client, second)
                copies = await _copy_points(client, first, second, min(decode.ms))
    return {"encode": encode, "prefill": prefill, "decode": decode, "copy": copies}
