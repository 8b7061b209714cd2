"""One request to its end: attempt after attempt, on other workers, until the client has it all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from protocol.errors import TriptychError, UpstreamError
from protocol.types import GenerateRequest, RequestOutput
from proxy.dispatch import Dispatch
from proxy.metrics import Timeline
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
        seconds = min(request.deadline_s or self.timeout_s, self.timeout_s)
        state = TokensRequest(
            request_id=request.request_id,
            deadline=time.monotonic() + seconds,
            priority=request.priority,
            caller=caller or Caller(),
            record=timeline.record,
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
        attempt = Attempt(state, wanted, plan, len(state.blamed))
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
