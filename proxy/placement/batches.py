"""Placements that are asked for together: while one call is under way, the next one gathers."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from protocol.errors import (
    DeadlineExceeded,
    InternalError,
    TriptychError,
    UpstreamError,
    from_worker,
)
from protocol.placement import (
    MOST_AT_ONCE,
    SCHEDULES_PATH,
    Finished,
    Placement,
    Scheduled,
    ScheduleRequest,
    ScheduleRequests,
    ScheduleResult,
)
from proxy.placement.master_client import MasterAway, MasterClient, Reporter

logger = logging.getLogger(__name__)
_ALONE_S = 1.0  # for which each request asks for itself, once one has had to wait for a worker
_MOST_KEYS = 1 << 16  # of blocks in one call: half a megabyte
_NO_ROUTE = (404, 405)  # of a master that is older
_NO_ROUTE_S = 60.0  # and until it is tried again
_NOT_TOGETHER = (400, 413)  # something is wrong with one of them, or they are too large


@dataclass(eq=False)
class _Asked:
    request: ScheduleRequest
    deadline: float
    placed: asyncio.Future[Placement | None]  # None: it is to ask for itself


class Batches:
    """A call and its answer cost proxy and master more than a placement does. Where requests come
    one after the other each is asked for at once; where many come, those that come while a call is
    under way share the next one."""

    def __init__(self, client: MasterClient, reporter: Reporter) -> None:
        self._client = client
        self._reporter = reporter
        self._waiting: list[_Asked] = []
        self._calling: asyncio.Task[None] | None = None
        self._alone_until = 0.0

    async def place(self, request: ScheduleRequest, deadline: float) -> Placement | None:
        """The placement; None where the request would have to wait for a worker, or its master
        knows no calls for several: it is to ask for itself. Raises what the master says."""
        if time.monotonic() < self._alone_until:
            return None
        placed: asyncio.Future[Placement | None] = asyncio.get_running_loop().create_future()
        asked = _Asked(request, deadline, placed)
        self._waiting.append(asked)
        if self._calling is None:
            self._calling = asyncio.create_task(self._call())
        try:
            # The call itself waits for the latest deadline of those that share it.
            async with asyncio.timeout(deadline - time.monotonic()):
                return await placed
        except (TimeoutError, asyncio.CancelledError) as ended:
            if asked in self._waiting:
                self._waiting.remove(asked)
            if isinstance(ended, TimeoutError):
                raise DeadlineExceeded(
                    "the master did not answer before the request's deadline"
                ) from None
            raise

    async def _call(self) -> None:
        try:
            while self._waiting:
                await self._ask(self._next())
        finally:
            self._calling = None

    def _next(self) -> list[_Asked]:
        count = keys = 0
        for one in self._waiting[:MOST_AT_ONCE]:
            keys += len(one.request.block_keys)
            if count and keys > _MOST_KEYS:
                break
            count += 1
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        return some

    async def _ask(self, some: list[_Asked]) -> None:
        """Every one of them is settled at the end."""
        try:
            results = await self._results(some)
        except Exception as error:
            if not isinstance(error, TriptychError):
                logger.exception("%d requests could not be placed", len(some))
                error = UpstreamError(f"the proxy failed to ask the master: {type(error).__name__}")
            for one in some:
                _fail(one, error)
            return
        for one, result in zip(some, results, strict=True):
            self._settle(one, result)

    async def _results(self, some: list[_Asked]) -> list[ScheduleResult]:
        body = ScheduleRequests([one.request for one in some])
        deadline = max(one.deadline for one in some)
        try:
            answer = await self._client.post(SCHEDULES_PATH, body, Scheduled, deadline)
        except TriptychError as error:
            no_route = error.status in _NO_ROUTE
            if not no_route and (error.status not in _NOT_TOGETHER or len(some) == 1):
                raise
            self._alone_until = time.monotonic() + _ALONE_S
            if no_route:
                self._alone_until += _NO_ROUTE_S
            return [ScheduleResult() for _ in some]
        if len(answer.results) != len(some):
            raise UpstreamError(f"the master placed {len(answer.results)} of {len(some)} requests")
        return answer.results

    def _settle(self, one: _Asked, result: ScheduleResult) -> None:
        if result.error is not None:
            error = from_worker(result.error)
            error.retry_after_s = result.retry_after_s
            # It may have placed the request before it failed, and is to hear of its end.
            broken = error.status == InternalError.status
            _fail(one, MasterAway(error.message) if broken else error)
            return
        if result.placement is None:
            self._alone_until = max(self._alone_until, time.monotonic() + _ALONE_S)
        if not one.placed.done():
            one.placed.set_result(result.placement)
        elif result.placement is not None:  # its request has ended meanwhile
            self._reporter.add(Finished(one.request.request_id, aborted=True))


def _fail(one: _Asked, error: TriptychError) -> None:
    if not one.placed.done():
        one.placed.set_exception(error)
