"""One request to its end: attempt after attempt, on other workers, until the client has it all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from protocol.errors import RateLimited, TriptychError, Unavailable, UpstreamError
from protocol.types import GenerateRequest, RequestOutput
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.placement.own_view import Plan, Planner, WorkerUnknown
from proxy.tokens.choices import ANY_TOKEN
from proxy.tokens.request_state import Caller, TokensRequest
from proxy.tokens.stages import Stages

logger = logging.getLogger(__name__)
_MAX_BACKOFF_S = 2.0
_ABSENCE_S = 0.25


@dataclass(frozen=True)
class Retrying:
    """`most` failures in a row are tried again; `backoff_s` before the first further try, then
    doubled. A request that has begun waits `absence_s` for a worker to be up and to have room."""

    most: int = 3
    backoff_s: float = 0.05
    absence_s: float = 30.0


@dataclass
class Pipeline:
    """Stateless: everything a request needs is in its own call. Workers emit token ids below
    `vocab_size`."""

    stages: Stages
    placing: Planner
    metrics: ProxyMetrics
    timeout_s: float
    retrying: Retrying = Retrying()
    random: random.Random = field(default_factory=random.Random)
    vocab_size: int = ANY_TOKEN

    async def run(
        self, request: GenerateRequest, media: Mapping[str, bytes], caller: Caller | None = None
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """Outputs of a rendered request, as they come; `media` are bytes by mm_hash.

        A stage that fails is tried again elsewhere; what the client has had is not repeated.
        Closing the generator ends every stage.
        """
        seconds = min(request.deadline_s or self.timeout_s, self.timeout_s)
        deadline = time.monotonic() + seconds
        state = TokensRequest(request, media, deadline, caller or Caller(), self.vocab_size)
        async with self.placing.admitted(state):
            while not state.complete:
                steps = self._attempt(state)
                async with contextlib.aclosing(steps):
                    async for outputs in steps:
                        yield outputs

    async def _attempt(self, state: TokensRequest) -> AsyncGenerator[list[RequestOutput], None]:
        """One attempt; if it fails and another may help, the pause before that."""
        wanted = state.wanted()
        try:
            plan = await self._placed(state, wanted)
        except WorkerUnknown as error:
            await self._again(state, error)
            return
        failed: list[Instance] = []
        try:
            try:
                attempt = self.stages.attempt(state, wanted, plan)
                failed = attempt.failed
                async with contextlib.aclosing(self.stages.run(attempt)) as steps:
                    async for outputs in steps:
                        yield state.passed(outputs)
                        if state.complete:
                            return
            finally:
                self.placing.over(wanted, failed, aborted=not state.complete)
            raise UpstreamError("the workers ended the request early")
        except TriptychError as error:
            await self._again(state, error)

    async def _again(self, state: TokensRequest, error: TriptychError) -> None:
        """The pause before another attempt; raises `error` if there is to be none."""
        name = state.wanted().request_id
        if not state.failed(error, self.retrying.most):
            raise error
        logger.info("%s: %s; trying again", name, error.message)
        self.metrics.retries.labels("resumed" if state.begun else "request").inc()
        await self._backoff(state)

    async def _placed(self, state: TokensRequest, wanted: GenerateRequest) -> Plan:
        """A plan; a request that has begun waits for workers to be up and to have room, any other
        is refused at once."""
        until = time.monotonic() + self.retrying.absence_s
        while True:
            try:
                return await self.placing.place(state, wanted)
            except (Unavailable, RateLimited):
                if not state.begun or time.monotonic() >= until:
                    raise
            await asyncio.sleep(min(_ABSENCE_S, state.left_s))

    async def _backoff(self, state: TokensRequest) -> None:
        """Wait longer with each failure, and never in step with others."""
        longest = min(_MAX_BACKOFF_S, self.retrying.backoff_s * 2 ** (state.failures - 1))
        await asyncio.sleep(min(longest * self.random.uniform(0.5, 1.0), state.left_s))
