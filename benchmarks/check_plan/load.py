"""Sends a trace in real time, as `benchmarks.simulate.simulation` does in virtual time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from benchmarks.check_plan.asks import RequestBody
from benchmarks.check_plan.live_clock import LiveClock
from benchmarks.simulate.arrivals import Arrivals
from benchmarks.simulate.prompts import Session, TraceRequest
from benchmarks.simulate.records import Objectives, Record

_JSON = {"content-type": "application/json"}
_DRAIN_S = 60.0
_LOOK_S = 0.5
# A line that is too long is a ValueError in older releases of aiohttp.
_REFUSALS = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError)


@dataclass(frozen=True)
class LoadPlan:
    """What is sent. `asks`: by request name, of all sessions that begin in time.

    `pace`: requests/s; `warm_s`: seconds before those that count; `end_s`: when these end.
    """

    sessions: Sequence[Session]  # all sessions, by their beginnings
    asks: Mapping[str, RequestBody]
    aims: Objectives  # objectives of the requests
    pace: float
    warm_s: float
    end_s: float


@dataclass(frozen=True)
class Run:
    """`records`: of the requests that count.

    `lag_s`: by how much the client was late, for 99 % of what it did.
    `stages_ms`: mean milliseconds of each stage until an answer began, as the proxy says.
    `marks`: what `mark` said at the begin and the end of what counts.
    `over_s`: when it ended, in seconds of the clock of `records`.
    """

    records: list[Record]
    lag_s: float
    stages_ms: Mapping[str, float]
    marks: tuple[Mapping[str, float], Mapping[str, float]]
    over_s: float


class Sender:
    """Requests under way, and what became of those before them."""

    def __init__(self, session: aiohttp.ClientSession, url: str, plan: LoadPlan) -> None:
        self._session = session
        self._url = url
        self._plan = plan
        self._tasks: set[asyncio.Task[None]] = set()
        self.records: list[Record] = []
        self.failure: BaseException | None = None  # the first one that no request explains
        self.stages: dict[str, list[float]] = {}
        self.clock = LiveClock()
        self.arrivals = Arrivals(self.clock, plan.sessions, plan.pace, self._arrive)

    def _arrive(self, request: TraceRequest) -> None:
        record = Record(request, self.clock.now, self._plan.aims.of(request))
        self.records.append(record)
        task = asyncio.create_task(self._ask(record, self._plan.asks[request.name]))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, record))

    def _ended(self, record: Record, task: asyncio.Task[None]) -> None:
        """Also after an error: a session whose turn is never over would go silent."""
        self._tasks.discard(task)
        if task.cancelled():  # the run is over
            return
        self.failure = self.failure or task.exception()
        if not record.over:
            record.refused = "broken"
        self.arrivals.ended(record.request.name)

    async def _ask(self, record: Record, ask: RequestBody) -> None:
        try:
            async with self._session.post(
                self._url + ask.path, data=ask.body, headers=_JSON
            ) as response:
                for stage, ms in stages_of(response.headers.get("server-timing", "")):
                    self.stages.setdefault(stage, []).append(ms)
                if response.status == 200:
                    await self._read(response, record)
                else:
                    record.refused = str(response.status)
        except _REFUSALS as error:
            record.refused = type(error).__name__

    async def _read(self, response: aiohttp.ClientResponse, record: Record) -> None:
        async for line in response.content:
            if carries_text(line) and record.first > self.clock.now:
                record.first = self.clock.now
            if ends_answer(line):
                record.last = self.clock.now

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def stages_of(timing: str) -> list[tuple[str, float]]:
    """Stages and their milliseconds in the header `Server-Timing`."""
    parts = (part.partition(";dur=") for part in timing.split(", ") if ";dur=" in part)
    return [(stage, float(ms)) for stage, _, ms in parts]


def carries_text(line: bytes) -> bool:
    """Whether an event brings text, of a chat or a completion."""
    if not line.startswith(b"data: {"):
        return False
    return any(name in line and name + b'"' not in line for name in (b'"text":"', b'"content":"'))


def ends_answer(line: bytes) -> bool:
    return line.startswith(b"data: {") and b'"finish_reason":"' in line


async def run(url: str, plan: LoadPlan, mark: Callable[[], Mapping[str, float]]) -> Run:
    """The whole trace; requests go on arriving until those that count have ended, or cannot keep
    their objectives any more. Raises what a request has failed with that is no refusal."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        sender = Sender(session, url, plan)
        clock = sender.clock
        sender.arrivals.begin()
        await clock.until(plan.warm_s)
        begin = mark()
        await clock.until(plan.end_s)
        end = mark()
        found = [r for r in sender.records if plan.warm_s <= r.arrival < plan.end_s]
        while clock.now < plan.end_s + _DRAIN_S:
            if sender.failure or all(r.over or r.lost(clock.now) for r in found):
                break
            await asyncio.sleep(_LOOK_S)
        over_s = clock.now
        await sender.close()
    if sender.failure is not None:
        raise sender.failure
    lags = sorted(clock.lags)
    stages = {stage: statistics.fmean(ms) for stage, ms in sender.stages.items()}
    return Run(found, lags[int(0.99 * len(lags))] if lags else 0.0, stages, (begin, end), over_s)
