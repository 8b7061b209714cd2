"""Which worker is next, what its failure means, and when to try again."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from protocol.types import Role
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.relay.response_validation import Refused
from proxy.upstream.connection import CallFailed
from proxy.upstream.connection_pool import ConnectionPool

_T = TypeVar("_T")
Failure = CallFailed | Refused
_MAX_BACKOFF_S = 2.0


def another_may_help(failure: Failure) -> bool:
    return isinstance(failure, CallFailed) or failure.again


def was_begun(failure: Failure) -> bool:
    """Whether the worker may have done something with what it was handed."""
    return failure.sent if isinstance(failure, CallFailed) else failure.charged


class Attempts:
    """Owns the pool to each URL; `close` closes them."""

    def __init__(self, fleet: Fleet, config: ProxyConfig, metrics: ProxyMetrics) -> None:
        self._loop = asyncio.get_running_loop()
        self._fleet = fleet
        self._config = config
        self._metrics = metrics
        self._pools: dict[str, ConnectionPool] = {}
        self._turn = itertools.count()
        self._random = random.Random()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def pool(self, instance: Instance) -> ConnectionPool:
        pool = self._pools.get(instance.url)
        if pool is None:
            self._prune()
            config = self._config
            pool = ConnectionPool(instance.url, config.connect_timeout, config.encode_at_once)
            self._pools[instance.url] = pool
        return pool

    def _prune(self) -> None:
        """Forget workers that have left the fleet."""
        known = {instance.url for instance in self._fleet.all()}
        for url in self._pools.keys() - known:
            self._pools.pop(url).close()

    def admitted(self, role: Role) -> list[Instance]:
        """The workers of a role that may be asked, suspects only if there is nobody else;
        `Unavailable` if there is none."""
        able = self._fleet.usable(role)
        if not able:
            raise self._fleet.nobody(role)
        return able

    def pick(self, role: Role, avoid: Sequence[Instance]) -> Instance:
        """The one with the fewest requests, in turn if several have; `avoid` only if need be."""
        workers = self._fleet.of(role)
        if len(workers) == 1:
            (only,) = workers
            if only.up and not only.draining and only.breaker.closed:
                return only
        able = self.admitted(role)
        turn = next(self._turn) % len(able)
        in_turn = able[turn:] + able[:turn]
        return min(in_turn, key=lambda instance: (instance in avoid, instance.in_flight))

    async def once(
        self,
        instance: Instance,
        avoid: list[Instance],
        work: Callable[[ConnectionPool, bool], Awaitable[_T]],
    ) -> _T:
        """Have one worker do `work`, its success or failure noted on its breaker.

        `work` is handed the pool, and whether it must make a new connection: a kept one may turn
        out to have been closed. A worker that fails is added to `avoid`.
        """
        pool = self.pool(instance)
        instance.breaker.started(self._loop.time())
        instance.in_flight += 1
        fresh = False
        try:
            while True:
                try:
                    result = await work(pool, fresh)
                    break
                except CallFailed as failure:
                    if fresh or not failure.stale:
                        raise
                fresh = True
        except (CallFailed, Refused) as failure:
            self._failed(instance, failure)
            avoid.append(instance)
            raise
        finally:
            instance.in_flight -= 1
        instance.breaker.succeeded()
        return result

    def _failed(self, instance: Instance, failure: Failure) -> None:
        kind = failure.kind if isinstance(failure, CallFailed) else str(failure.answer.status)
        self._metrics.upstream_failures.labels(instance.role, kind).inc()
        if isinstance(failure, CallFailed) or failure.charged:
            instance.breaker.failed(self._loop.time())

    async def retried(
        self,
        choose: Callable[[Sequence[Instance]], Instance],
        work: Callable[[ConnectionPool, bool], Awaitable[_T]],
    ) -> _T:
        """`work` at the worker that `choose` names, then at others, as often as is allowed."""
        avoid: list[Instance] = []
        attempt = 0
        while True:
            instance = choose(avoid)
            try:
                return await self.once(instance, avoid, work)
            except (CallFailed, Refused) as failure:
                if not self.again(failure, attempt, instance.role):
                    raise
            await self.backoff(attempt)
            attempt += 1

    def again(self, failure: Failure, attempt: int, stage: str) -> bool:
        """Whether to try again after the attempt with this number, from 0."""
        if attempt >= self._config.max_retries or not another_may_help(failure):
            return False
        self._metrics.retries.labels(stage).inc()
        return True

    async def backoff(self, attempt: int) -> None:
        """Wait longer with each attempt, and never in step with others."""
        longest = min(_MAX_BACKOFF_S, self._config.retry_backoff * 2**attempt)
        await asyncio.sleep(longest * self._random.uniform(0.5, 1.0))
