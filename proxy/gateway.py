"""The proxy itself: what every route is handed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

import msgspec

from protocol.errors import TriptychError, Unavailable
from protocol.generate import check_ec_params
from protocol.types import GenerateRequest, RequestOutput
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.metrics import ProxyMetrics, Timeline
from proxy.tokens.pipeline import Pipeline
from proxy.tokens.request_state import Caller
from proxy.upstream.client import UpstreamClient
from services.frontend.render import Frontend, RenderedRequest

_RETRY_AFTER_S = 1.0


@dataclass
class Gateway:
    """Owns nothing that outlives a request but counts and connections.

    Without a `frontend` the proxy renders nothing: every request is relayed. `beside` is what goes
    on while requests are served.
    """

    config: ProxyConfig
    frontend: Frontend | None
    fleet: Fleet
    client: UpstreamClient
    pipeline: Pipeline
    metrics: ProxyMetrics
    beside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    in_flight: int = 0

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request in while it is here; `Unavailable` if as many as allowed are."""
        if self.in_flight >= self.config.max_in_flight:
            raise Unavailable("the proxy is full", retry_after_s=_RETRY_AFTER_S)
        self.in_flight += 1
        self.metrics.in_flight.set(self.in_flight)
        try:
            yield
        finally:
            self.in_flight -= 1
            self.metrics.in_flight.set(self.in_flight)

    async def run(self, rendered: RenderedRequest) -> AsyncGenerator[list[RequestOutput], None]:
        """Outputs of a rendered request; closing the generator ends all its stages."""
        request = self._allowed(rendered.generate)
        timeline = Timeline(self.metrics)
        caller = Caller(rendered.tenant, rendered.session)
        steps = self.pipeline.run(request, rendered.media, caller)
        try:
            async with contextlib.aclosing(steps):
                async for outputs in steps:
                    timeline.step()
                    yield outputs
            timeline.end()
        except BaseException as error:
            self._left(rendered, timeline, error)
            raise

    def _allowed(self, request: GenerateRequest) -> GenerateRequest:
        """Without what a client may not say: where workers fetch KV and, unless media may be named
        by reference, embeddings."""
        check_ec_params(request.ec_transfer_params)
        named = request.ec_transfer_params if self.config.allow_media_references else None
        return msgspec.structs.replace(request, kv_transfer_params=None, ec_transfer_params=named)

    def _left(self, rendered: RenderedRequest, timeline: Timeline, error: BaseException) -> None:
        """Count what ends a request early and is no answer's status: an answer is ended by a stop
        string, or it is a stream that has begun."""
        if isinstance(error, GeneratorExit) and rendered.output.stop:
            timeline.end()
        elif rendered.output.stream and timeline.begun:
            if isinstance(error, TriptychError):
                self.metrics.errors.labels(error.code).inc()
            elif isinstance(error, GeneratorExit | asyncio.CancelledError):
                self.metrics.aborted.inc()
