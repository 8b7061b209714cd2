"""One request to its end: attempt after attempt, on other workers, until the client has it all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.errors import RequestAborted, TriptychError, UpstreamError
from protocol.request_record import RequestRecord
from protocol.types import GenerateRequest, RequestOutput
from proxy.dispatch import Dispatch
from proxy.metrics import ProxyMetrics
from proxy.placement.planner import ModelNames, Plan, Planner, need_of
from proxy.request_state import Caller
from proxy.tokens.request_state import ANY_TOKEN, TokensRequest
from proxy.tokens.stages import TokensStages
from proxy.tokens.worker_calls import Attempt
from services.frontend.render import Frontend


@dataclass(frozen=True)
class PipelineModel:
    """What the pipeline knows of a model: its names, and that token ids are below `vocab_size`."""

    names: ModelNames = field(default_factory=ModelNames)
    vocab_size: int = ANY_TOKEN

    @staticmethod
    def of(frontend: Frontend, *, alone: bool) -> PipelineModel:
        """`alone`: as of `ModelNames`."""
        return PipelineModel(ModelNames.of(frontend, alone=alone), frontend.info.vocab_size)


class Timeline:
    """Times of one request as its outputs pass by, and how it ends. `streamed`: an error after the
    first output is no answer's status. `stops`: an answer may be ended by a stop string."""

    def __init__(
        self,
        metrics: ProxyMetrics,
        record: RequestRecord | None = None,
        *,
        streamed: bool = False,
        stops: bool = False,
    ) -> None:
        self._metrics = metrics
        self.record = record or RequestRecord()
        self._counted = False
        self._streamed, self._stops = streamed, stops
        self._start = time.monotonic()
        self._last: float | None = None

    def step(self, outputs: Sequence[RequestOutput] = ()) -> None:
        now = time.monotonic()
        if outputs:
            self._count(outputs)
        if self._last is None:
            self.record.first_output(now)
            self._metrics.ttft.observe(now - self._start)
        else:
            self._metrics.itl.observe(now - self._last)
        self._last = now

    def _count(self, outputs: Sequence[RequestOutput]) -> None:
        """Tokens of the log line. Each choice says what was cached of the prompt they share."""
        record = self.record
        made = sum(len(output.token_ids) for output in outputs)
        record.completion_tokens = max(0, record.completion_tokens) + made
        if not self._counted and outputs[0].cached_tokens is not None:
            self._counted = True
            record.cached_tokens = max(0, record.cached_tokens) + outputs[0].cached_tokens

    def end(self) -> None:
        self._metrics.e2e.observe(time.monotonic() - self._start)

    def cut_short(self, error: BaseException) -> None:
        """Count what has ended the request early, unless it is counted as an answer's status."""
        if isinstance(error, GeneratorExit) and self._stops:
            self.end()
        elif self._streamed and self._last is not None:
            if isinstance(error, TriptychError):
                self.record.outcome = error.code
                self._metrics.errors.labels(error.code).inc()
            elif isinstance(error, GeneratorExit | asyncio.CancelledError):
                self.record.outcome = RequestAborted.code
                self._metrics.aborted.inc()


@dataclass
class Pipeline:
    """Stateless: everything a request needs is in its own call. `model`: of requests that are run
    without one."""

    stages: TokensStages
    planner: Planner
    dispatch: Dispatch
    timeout_s: float
    model: PipelineModel = field(default_factory=PipelineModel)

    async def run(
        self,
        request: GenerateRequest,
        media: Mapping[str, bytes],
        caller: Caller | None = None,
        timeline: Timeline | None = None,
        model: PipelineModel | None = None,
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """Outputs of a rendered request, as they come; `media` are bytes by mm_hash.

        A stage that fails is tried again elsewhere; what the client has had is not repeated.
        Closing the generator ends every stage.
        """
        timeline = timeline or Timeline(self.dispatch.metrics)
        model = model or self.model
        wanted_s = request.deadline_s
        # 0 is a deadline too: one that has passed.
        seconds = self.timeout_s if wanted_s is None else min(wanted_s, self.timeout_s)
        state = TokensRequest(
            request_id=request.request_id,
            deadline=time.monotonic() + seconds,
            priority=request.priority,
            caller=caller or Caller(),
            record=timeline.record,
            # A completion of several prompts comes here once for each, with one record.
            charged=timeline.record.charged,
            request=request,
            media=media,
            vocab_size=model.vocab_size,
            names=model.names,
        )
        admission = self.planner.admission
        try:
            async with (
                contextlib.nullcontext()
                if admission is None
                else admission.admitted(state, len(request.token_ids))
            ):
                while not state.complete:
                    async with contextlib.aclosing(self._attempt(state)) as steps:
                        async for outputs in steps:
                            timeline.step(outputs)
                            yield outputs
            timeline.end()
        # GeneratorExit too: a client that leaves is counted.
        except BaseException as error:
            timeline.cut_short(error)
            raise

    async def _attempt(self, state: TokensRequest) -> AsyncGenerator[list[RequestOutput], None]:
        """One attempt; if it fails and another may help, the pause before that."""
        plan, wanted = await self._placed(state)
        attempt = Attempt(state, wanted, plan)
        try:
            try:
                async with contextlib.aclosing(self.stages.run(attempt)) as steps:
                    async for outputs in steps:
                        yield state.passed(outputs)
                        if state.complete:
                            return
            finally:
                # Told before the next attempt is placed, which must find this one's places free.
                self.planner.over(wanted.request_id, attempt.end())
            raise UpstreamError("the workers ended the request early")
        except TriptychError as error:
            await self.dispatch.again(state, error, "resumed" if state.begun else "request")

    async def _placed(self, state: TokensRequest) -> tuple[Plan, GenerateRequest]:
        """A plan for what is left; placed again, that has another id."""

        async def place() -> tuple[Plan, GenerateRequest]:
            wanted = state.wanted()
            return await self.planner.place(state, need_of(wanted, state.names)), wanted

        return await self.dispatch.placed(state, place)
