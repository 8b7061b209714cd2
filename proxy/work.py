"""Work that is done for requests: a request over its attempts, and what several wait for, done once
for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from protocol.errors import DeadlineExceeded, TriptychError
from protocol.request_record import RequestRecord
from proxy.fleet.worker import Instance

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Caller:
    """Whose fair share a request counts against, and what it has to do with others."""

    tenant: str = ""
    session: str = ""


@dataclass(kw_only=True)
class Tries:
    """Attempts at one piece of work: a request, or the encoding of a picture for several requests.

    `deadline`: of `time.monotonic`; nothing is tried after it.
    `request_id`: for the log.
    `avoid`: workers that have failed it, oldest first; `blamed`: those of them that are at fault.
    `attempt`: how many attempts have ended.
    `in_a_row`: those of them that nothing has come of since something did.
    `failures`: as many of these as count.
    `seen`: by way of failing, the worker that failed so first.
    `excused`: the failure that does not count.
    `lost`: whether a worker that had the work has stopped to take requests.
    `waiting_since`: when it was first left without a worker, None if it was not.
    `wanted_model`: as of `Need`; who else could do the work serves it too.
    `record`: where its stages, workers and attempts are noted.
    """

    deadline: float
    request_id: str = ""
    avoid: list[Instance] = field(default_factory=list)
    blamed: list[Instance] = field(default_factory=list)
    attempt: int = field(init=False, default=0)
    in_a_row: int = field(init=False, default=0)
    failures: int = field(init=False, default=0)
    seen: dict[str, Instance] = field(default_factory=dict)
    excused: TriptychError | None = field(init=False, default=None)
    lost: bool = field(init=False, default=False)
    waiting_since: float | None = field(init=False, default=None)
    wanted_model: str | None = None
    record: RequestRecord = field(default_factory=RequestRecord)

    @property
    def left_s(self) -> float:
        """Seconds left; `DeadlineExceeded` if there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the request's deadline has passed")
        return left

    @property
    def begun(self) -> bool:
        """Whether its client has had any of the answer."""
        return False

    def progressed(self) -> None:
        """Something came of the attempt under way: failures before it count no more."""
        self.in_a_row = self.failures = 0
        self.lost = False
        self.excused = self.waiting_since = None


@dataclass(kw_only=True)
class RequestState(Tries):
    """A client's request over all its attempts. `priority`: lower is served earlier, 0 is usual."""

    priority: int = 0
    caller: Caller = Caller()


@dataclass(eq=False)
class Flight(Generic[ResultT]):
    """A piece of work under way, and how many requests wait for it. `worker` does it now."""

    task: asyncio.Task[ResultT]
    waiters: int = 0
    worker: Instance | None = None


class SingleFlight(Generic[ResultT]):
    """Flights by key. The last request to leave a flight cancels it."""

    def __init__(self) -> None:
        self._flights: dict[bytes | str, Flight[ResultT]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, key: bytes | str) -> Flight[ResultT] | None:
        """The flight under way that a request with this key would join."""
        return self._flights.get(key)

    def forget(self, key: bytes | str) -> Flight[ResultT] | None:
        """No request joins this flight any more; those that have, wait on."""
        return self._flights.pop(key, None)

    async def join(
        self, key: bytes | str, work: Callable[[], Coroutine[Any, Any, ResultT]]
    ) -> tuple[ResultT, bool]:
        """The result, and whether the flight was under way already. Raises what the work does."""
        flight = self._flights.get(key)
        joined = flight is not None and not flight.task.done()
        if flight is None or not joined:
            flight = self._flights[key] = Flight(asyncio.create_task(work()))
        flight.waiters += 1
        try:
            # A request that leaves must not end the work that others wait for.
            return await asyncio.shield(flight.task), joined
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                flight.task.cancel()
                # It may have been forgotten, and another one begun under its key.
                if self._flights.get(key) is flight:
                    del self._flights[key]
