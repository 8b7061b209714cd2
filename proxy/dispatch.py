"""One call to a worker, and another elsewhere if it fails: the same for both dialects.

Every call is counted, timed, and its failure charged to the worker it counts against, once for each
request and way of failing: one request must not open a breaker. What it has met at one worker and
meets again at another is its own fault: the first is forgiven, the second is not charged. A worker
that takes no more requests is out of choice at once, and the attempt there does not count.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeVar

from protocol.errors import RateLimited, TriptychError, Unavailable
from protocol.request_record import Call
from protocol.types import Role
from proxy.fleet.fleet import Fleet, NoWorker, WorkerUnknown
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.request_state import Tries
from proxy.upstream.failures import Failure, failure_of, judge_key

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_MAX_BACKOFF_S = 2.0  # the longest pause
_MAX_DOUBLINGS = 16  # a thousand would be more than a float holds
_LOOK_S = 0.1  # between two looks for a worker that is up


@dataclass(frozen=True)
class Retrying:
    """`most` failures in a row are tried again; `backoff_s` before the first further try, then
    doubled. A request that has begun, or has lost its worker, waits `failover_s` for another."""

    most: int = 3
    backoff_s: float = 0.05
    failover_s: float = 30.0


class Suspicions(Protocol):
    """Who else wants to hear of a worker that takes no requests."""

    def suspect(self, instance: Instance) -> None: ...


class Dispatch:
    """Calls to the workers of a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        metrics: ProxyMetrics,
        retrying: Retrying = Retrying(),
        observer: Suspicions | None = None,
    ) -> None:
        self.fleet, self._random = fleet, random.Random()
        self.metrics, self.seconds = metrics, metrics.stages
        self._retrying, self._observer = retrying, observer

    def calling(self, tries: Tries, instance: Instance, stage: Role) -> Calling:
        """A context around one call for a `stage`, which may differ from the worker's role."""
        return Calling(self, tries, instance, stage)

    def failed(self, tries: Tries, instance: Instance, error: TriptychError) -> None:
        """Note a call that has ended with `error`: on the worker, and on the request."""
        judge_key(error, own=tries.own_key)
        failure = failure_of(error)
        if not failure.retry:
            return  # it speaks of the request alone
        self.metrics.upstream_failures.labels(instance.role, failure.kind).inc()
        self.shun(tries, instance, error)
        if failure.gone:  # out of choice until it is well again
            self.fleet.lose(instance, error.message)
            if self._observer is not None:
                self._observer.suspect(instance)
        if failure.charged:
            self._charge(tries, instance, failure)
        elif failure.gone and tries.charges_first(failure.kind, instance):
            tries.blamed.append((failure.kind, instance))

    def shun(self, tries: Tries, instance: Instance, error: TriptychError) -> None:
        """Note on a request alone what it, or work that it needs, has met at a worker."""
        failure = failure_of(error)
        if failure.retry and failure.elsewhere:
            tries.avoid.append(instance)
        if not failure.gone:
            return
        # Excused; but only one attempt of those that reached a worker: the request may end them.
        if not (failure.sent and tries.lost):
            tries.excused = error
        tries.lost |= failure.sent
        tries.waiting_since = tries.waiting_since or time.monotonic()

    def _charge(self, tries: Tries, instance: Instance, failure: Failure) -> None:
        """What has failed the same way elsewhere is the request's own fault."""
        # A call that never reached its worker says nothing of the request.
        first = tries.seen.setdefault(failure.kind, instance) if failure.sent else instance
        if first is not instance and not failure.gone:
            tries.forgive(failure.kind)
            return
        # Passed over until a probe finds it well: the breaker opens only after several failures.
        instance.suspect = True
        if not tries.charges_first(failure.kind, instance):
            return
        charge = instance.breaker.failed(time.monotonic())
        if failure.sent and first is instance:
            tries.charges.setdefault(failure.kind, []).append(charge)
        tries.blamed.append((failure.kind, instance))

    async def tried(
        self,
        tries: Tries,
        stage: Role,
        choose: Callable[[], Instance],
        work: Callable[[Instance], Awaitable[_T]],
        *,
        only_elsewhere: bool = False,
    ) -> _T:
        """`work` at the worker that `choose` names, then at others, as often as is allowed.
        `only_elsewhere`: never at one again that has failed it."""
        while True:
            try:
                instance = choose()
                with self.calling(tries, instance, stage):
                    return await work(instance)
            except TriptychError as error:
                waits = isinstance(error, NoWorker) or error is tries.excused
                if only_elsewhere and not waits and not self._others(tries, stage):
                    raise
                await self.again(tries, error, stage)

    def _others(self, tries: Tries, stage: Role) -> bool:
        """Whether a worker is left that has not failed the work."""
        able = self.fleet.usable(stage, tries.avoid, tries.wanted_model)
        return any(one not in tries.avoid for one in (*able, *filter(None, (tries.also,))))

    async def placed(self, tries: Tries, place: Callable[[], Awaitable[_T]]) -> _T:
        """What `place` finds; a refusal is final unless the request is owed a worker."""
        while True:
            try:
                with tries.record.during("place"):
                    return await place()
            except WorkerUnknown as error:
                # News of the worker are on their way: this takes time, and none of the attempts.
                tries.excuse(error)
                await self.again(tries, error, "request")
            except (Unavailable, RateLimited) as error:
                await self._wait_for_worker(tries, error)

    async def again(self, tries: Tries, error: TriptychError, stage: str) -> None:
        """The pause before another attempt; raises `error` if there is to be none."""
        if isinstance(error, NoWorker):
            await self._wait_for_worker(tries, error)
            return
        tries.attempt += 1
        tries.in_a_row += 1
        if not self._worth_it(tries, error):
            if error.status >= 500 and not isinstance(error, Unavailable):
                logger.warning("request %s: %s", tries.request_id, error)  # the client is told less
            raise error
        logger.info("request %s: %s; trying again", tries.request_id, error)
        self.metrics.retries.labels(stage).inc()
        tries.record.retries += 1
        await self._backoff(tries)

    def _worth_it(self, tries: Tries, error: TriptychError) -> bool:
        now = time.monotonic()
        if not (failure_of(error).retry and self._retrying.most) or now >= tries.deadline:
            return False
        if error is not tries.excused or tries.waited_s(now) >= self._retrying.failover_s:
            tries.failures += 1
        tries.excused = None  # a kept error would keep all frames that it has passed
        return tries.failures <= self._retrying.most

    async def _wait_for_worker(self, tries: Tries, error: TriptychError) -> None:
        """A moment; raises `error` unless the request has begun, or has lost its worker, and has
        not waited long enough."""
        now = time.monotonic()
        owed = tries.begun or tries.waiting_since is not None
        if not owed or tries.waited_s(now) >= self._retrying.failover_s:
            raise error
        # The fleet is asked every `_LOOK_S`: no event says that a breaker's cooldown is over.
        tries.waiting_since = tries.waiting_since or now
        await asyncio.sleep(min(_LOOK_S, tries.left_s))

    async def _backoff(self, tries: Tries) -> None:
        """Wait longer with each attempt in a row, and never in step with others."""
        doubled = min(tries.in_a_row - 1, _MAX_DOUBLINGS)
        longest = min(_MAX_BACKOFF_S, self._retrying.backoff_s * 2**doubled)
        await asyncio.sleep(min(longest * self._random.uniform(0.5, 1.0), tries.left_s))


class Calling(Call):
    """One call while it lasts, and what the request's record keeps of it."""

    # A class of its own, as every relayed request passes through three: a generator's context takes
    # three times as long.
    __slots__ = ("_dispatch", "_instance", "_stage", "_tries")

    def __init__(self, dispatch: Dispatch, tries: Tries, instance: Instance, stage: Role) -> None:
        self._dispatch = dispatch
        self._tries = tries
        self._instance = instance
        self._stage: Role = stage
        self.stage, self.worker = stage, instance.url
        self.start = self.end = 0.0

    def __enter__(self) -> Calling:
        self.start = now = time.monotonic()
        self._instance.breaker.started(now)
        self._instance.in_flight += 1
        record = self._tries.record
        if record.kept:
            record.calls.append(self)
        return self

    @property
    def elapsed_s(self) -> float:
        """Seconds from its start to its end."""
        return self.end - self.start

    @property
    def so_far_s(self) -> float:
        """Seconds since it began, while it lasts."""
        return time.monotonic() - self.start

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        instance, tries = self._instance, self._tries
        instance.in_flight -= 1
        self.end = now = time.monotonic()
        del self._tries  # the record that keeps this outlives the request and its body
        # A reader that leaves between two outputs has what it needs: a stop string, for one.
        if error is None or isinstance(error, GeneratorExit):
            instance.breaker.succeeded()
            instance.heard = now
            self._dispatch.seconds[self._stage].observe(now - self.start)
        # A call that was cancelled is neither: it says nothing of the worker.
        elif isinstance(error, TriptychError):
            self._dispatch.failed(tries, instance, error)
