"""Placements at a rate that does not wait for answers, while every worker beats and publishes.

Each placed request makes the events that it would: its prefill worker stores the blocks that it
lacked, its decode worker gets them too, and both lose as many old ones once their caches are full.
Latency counts from the moment a request was due, so that a late answer delays no later request.
"""

import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from benchmarks.bench_master.fleet import Beats, Publishing
from benchmarks.bench_master.http import (
    Connection,
    Refused,
    publish,
    publisher,
    serving,
)
from benchmarks.bench_master.load import BLOCK_SIZE, SEED, chains, requests_of, workers
from benchmarks.bench_master.sampled_master import REST
from benchmarks.common.plotting import curves
from benchmarks.common.processes import processor_s
from benchmarks.common.rows import Row
from protocol.placement import (
    FINISHED_PATH,
    SCHEDULE_PATH,
    Finished,
    FinishedReports,
    Placement,
    ScheduleRequest,
)
from protocol.registry import REGISTER_PATH, InstanceRole

WORKERS: dict[InstanceRole, int] = {"prefill": 600, "decode": 400}
CONNECTIONS = 128
PREFILL_S, REQUEST_S = 0.1, 1.0
_REPORT_S = 0.02  # proxies report what has ended together
_DRAIN_S = 5.0


@dataclass
class Step:
    """One offered rate for some seconds."""

    rate: float  # placements/s offered
    seconds: float  # that it goes on for
    times: list[float] = field(default_factory=list)  # from due to answered, s, of each
    offered: int = 0  # placements that were due
    blocks: int = 0  # changes that workers published
    beats: int = 0  # heartbeats that were answered
    core: float = 0.0  # cores that the master kept busy
    client_core: float = 0.0  # and this process
    wall_s: float = 0.0  # how long it took
    refused: int = 0  # placements that got an error


class Proxies:
    """What proxies do: ask, and report what has ended. Connections take turns: a master ends those
    that are idle for long."""

    def __init__(self, lanes: list[Connection], publishing: Publishing) -> None:
        self._lanes: asyncio.Queue[Connection] = asyncio.Queue()
        for lane in lanes:
            self._lanes.put_nowait(lane)
        self._publishing = publishing
        self._reports: list[Finished] = []

    async def ask(self, step: Step, request: ScheduleRequest, due: float) -> None:
        lane = await self._lanes.get()
        try:
            answer = await lane.post(SCHEDULE_PATH, request)
        except Refused:
            step.refused += 1
            return
        finally:
            self._lanes.put_nowait(lane)
        step.times.append(time.perf_counter() - due)
        placed = msgspec.msgpack.decode(answer, type=Placement)
        loop, name = asyncio.get_running_loop(), request.request_id
        loop.call_later(PREFILL_S, self._reports.append, Finished(name, "prefill"))
        loop.call_later(REQUEST_S, self._reports.append, Finished(name))
        missing = request.block_keys[placed.hit_tokens // BLOCK_SIZE :]
        for target in (placed.prefill, placed.decode):
            if target is not None and missing:
                step.blocks += self._publishing.stored(target.instance_id, missing)

    async def report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            if self._reports:
                reports, self._reports = self._reports, []
                lane = await self._lanes.get()
                await lane.post(FINISHED_PATH, FinishedReports(reports))
                self._lanes.put_nowait(lane)


async def offer(proxies: Proxies, step: Step, requests: list[ScheduleRequest], pid: int) -> None:
    """Requests at random moments (Poisson); those that are open `_DRAIN_S` after the end are given
    up, and lack from `times`."""
    rng = random.Random(SEED)
    waiting: set[asyncio.Task[None]] = set()
    begun, used, own = time.perf_counter(), processor_s(pid), time.process_time()
    due, end = begun, begun + step.seconds
    for request in requests:
        due += rng.expovariate(step.rate)
        if due >= end:
            break
        if due > time.perf_counter():
            await asyncio.sleep(due - time.perf_counter())
        step.offered += 1
        task = asyncio.create_task(proxies.ask(step, request, due))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
    step.wall_s = time.perf_counter() - begun
    step.core = (processor_s(pid) - used) / step.wall_s
    step.client_core = (time.process_time() - own) / step.wall_s
    if waiting:
        _, late = await asyncio.wait(waiting, timeout=_DRAIN_S)
        for task in late:
            task.cancel()


@asynccontextmanager
async def background(works: list[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """They run meanwhile; one that fails is raised at the end."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error


async def drive(
    address: tuple[str, int], pid: int, blocks: int, steps: list[Step], *, samples: bool = True
) -> list[Step]:
    """Fill the index with `blocks`, then offer each rate; the steps that were done: the last is the
    first that was not sustained. `samples`: the master counts where its time goes."""
    rng = random.Random(SEED)
    prompts = chains(rng, blocks)
    lanes = [Connection(*await asyncio.open_connection(*address)) for _ in range(CONNECTIONS)]
    with publisher() as (socket, endpoint):
        infos = workers(WORKERS, endpoint)
        for info in infos:
            await lanes[0].post(REGISTER_PATH, info)
        sequences = await publish(socket, infos, prompts, lanes[0])
        proxies = Proxies(lanes, Publishing(socket, sequences))
        beats = [Beats(Connection(*await asyncio.open_connection(*address)), i) for i in infos]
        done: list[Step] = []
        async with background([proxies.report(), *(one.run(rng.random()) for one in beats)]):
            if samples:
                os.kill(pid, signal.SIGUSR1)
            for number, step in enumerate(steps):
                requests = requests_of(rng, prompts, int(step.rate * step.seconds * 1.2) + 100)
                for request in requests:
                    request.request_id = f"{number}-{request.request_id}"
                before = sum(one.count for one in beats)
                await offer(proxies, step, requests, pid)
                step.beats = sum(one.count for one in beats) - before
                done.append(step)
                if not sustained(step):
                    break
    return done


def sustained(step: Step) -> bool:
    """All answered, and at no moment did requests wait for longer than a second."""
    return len(step.times) == step.offered and max(step.times, default=0.0) < 1.0


def open_loop_rows(
    blocks: int, rates: Sequence[float], seconds: float, plot: Path | None = None
) -> list[Row]:
    """Percentiles for each rate, and how the master's processor time was divided over all; the
    percentiles of the rates that were sustained are drawn into `plot`."""
    steps = [Step(rate, seconds) for rate in rates]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.json"
        with serving("benchmarks.bench_master.sampled_master", str(file)) as (address, pid):
            done = uvloop.run(drive(address, pid, blocks, steps))
        samples = json.loads(file.read_text())
    if plot is not None:
        draw(plot, [step for step in done if sustained(step)])
    rows = [row for step in done for row in step_rows(step)]
    total = sum(samples.values())
    for part in ("index", "events", "placement", "fleet", REST):
        name = f"master's processor time under these loads: {part}, %"
        rows.append(Row(name, 100.0 * samples.get(part, 0) / total))
    return rows


def draw(path: Path, done: Sequence[Step]) -> None:
    lines = {
        f"p{p}": [(step.rate, float(np.percentile(step.times, p)) * 1e3) for step in done]
        for p in (50, 95, 99)
    }
    curves(path, lines, "placements/s offered", "latency, ms")


def step_rows(step: Step) -> list[Row]:
    said = "" if sustained(step) else ", NOT SUSTAINED"
    name = f"offered {step.rate:,.0f}/s, {sum(WORKERS.values()):,} workers{said}:"
    times = np.array(step.times or [np.inf]) * 1e3
    shown = {f"p{p:g}, ms": float(np.percentile(times, p)) for p in (50, 95, 99)}
    shown["answered/s"] = len(step.times) / step.wall_s
    shown["block changes/s"] = step.blocks / step.wall_s
    shown["heartbeats/s"] = step.beats / step.wall_s
    shown["cores of the master"] = step.core
    shown["cores of the load"] = step.client_core
    return [Row(f"{name} {what}", value) for what, value in shown.items()]
