"""The proxy itself: what every route is handed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec

from protocol.generate import check_ec_params
from protocol.pooling import check_task
from protocol.request_record import RequestRecord
from protocol.types import GenerateRequest, RequestOutput
from proxy.admission import InFlight
from proxy.config import ProxyConfig
from proxy.dispatch import Dispatch
from proxy.fleet.fleet import Fleet
from proxy.metrics import ProxyMetrics
from proxy.placement.planner import Planner
from proxy.request_log import RequestLog, note_usage
from proxy.request_state import Caller
from proxy.single_flight import SingleFlight
from proxy.tokens.pipeline import Pipeline, PipelineModel, Timeline
from proxy.upstream.client import UpstreamClient
from proxy.upstream.pools import ConnectionPools
from services.frontend.models import Models
from services.frontend.render import Frontend
from services.frontend.spec import RenderedRequest
from services.http.bodies import Bodies
from services.http.lame_duck import LameDuck
from services.http.records import make_tracer

MARK = "page-"
"""Begins the id of each request that the page itself asks. The rest of it is drawn at random, so
that only who asked knows it."""
_MARK = MARK.encode()
_LONGEST_MARKED = len(MARK) + 32
_MOST = 200  # records
_WATCHED_S = 10.0  # since the page has asked last


class RecentRequests:
    """Records of the last requests, those in progress too, newest last.

    A relayed request is recorded only if it is the page's own or an operator has the page open: to
    record all of them would slow each one. `on`: whether there is a page.
    """

    def __init__(self, on: bool, most: int = _MOST) -> None:
        self._on = on
        self._records: deque[RequestRecord] = deque(maxlen=most)
        self._watched = False
        self._until = 0.0

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self._records)

    def wants(self, request_id: bytes) -> bool:
        """Whether a relayed request with this id is to be recorded."""
        return self._watched or (self._on and request_id.startswith(_MARK))

    def watch(self) -> None:
        """An operator has the page open. The page calls this again and again, on the event loop."""
        self._until = time.monotonic() + _WATCHED_S
        if not self._watched:
            self._watched = True
            # A timer keeps a flag: `wants` is asked for every relayed request, and reads no clock.
            asyncio.get_running_loop().call_later(_WATCHED_S, self._look_up)

    def _look_up(self) -> None:
        left_s = self._until - time.monotonic()
        self._watched = left_s > 0
        if self._watched:
            asyncio.get_running_loop().call_later(left_s, self._look_up)

    def begun(self, record: RequestRecord) -> None:
        """A request has come."""
        if self._on:
            record.explained, record.shown = self._watched, True
            self._records.append(record)

    def over(self, record: RequestRecord) -> None:
        """It has been answered, or given up. The end of its answer is not kept."""
        if record.shown:
            record.ended_at = record.ended_at or time.monotonic()
            note_usage(record)
            record.tail = (b"", b"")

    def asked_by_page(self, request_id: str) -> RequestRecord | None:
        """The record of a request of the page's own, by its whole id; None if it is forgotten. A
        proxy that renders has put an end of its own to the id."""
        if not request_id.startswith(MARK) or len(request_id) != _LONGEST_MARKED:
            return None
        found = (r for r in reversed(self._records) if r.request_id.startswith(request_id))
        return next(found, None)


@dataclass
class Gateway:
    """Owns nothing that outlives a request but counts and connections.

    `config`: all flags.
    `models`: what it renders for; None if it renders nothing, so that every request is relayed.
    `fleet`: the workers that it knows.
    `client`: connections for rendered requests, those that are passed on, and probes.
    `pools`: connections for relayed requests.
    `metrics`: what /metrics shows.
    `in_flight`: requests in this process, rendered and relayed ones.
    `planner`: places both.
    `dispatch`: calls workers for both, and notes how that went.
    `pipeline`: runs rendered requests.
    `beside`: what goes on while requests are served.
    `encoding`: calls to encoders for requests that are relayed or passed on.
    `bodies`: what is being received on all routes.
    `life`: whether it is about to end.
    `log`: a line for each request.
    `recent`: what the page shows of the last requests.
    """

    config: ProxyConfig
    models: Models | None
    fleet: Fleet
    client: UpstreamClient
    pools: ConnectionPools
    metrics: ProxyMetrics
    in_flight: InFlight
    planner: Planner
    dispatch: Dispatch
    pipeline: Pipeline
    beside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    encoding: SingleFlight[tuple[dict[str, Any], str]] = field(init=False)
    bodies: Bodies = field(init=False)
    life: LameDuck = field(init=False)
    log: RequestLog = field(init=False)
    recent: RecentRequests = field(init=False)

    def __post_init__(self) -> None:
        self.life = LameDuck(self.config.drain_delay, self.config.shutdown_timeout)
        self.log = RequestLog(
            self.config.log_requests, self.config.log_format, counted=self.metrics.by_model.note
        )
        self.recent = RecentRequests(self.config.page)
        self.tracer = make_tracer(self.config, "proxy")
        self.encoding = SingleFlight()
        self.bodies = Bodies(self.config.max_body_bytes, self.config.max_received_bytes)
        self._served: dict[str, PipelineModel] = {}
        if (models := self.models) is not None:
            alone = not models.several
            self._served = {one.name: PipelineModel.of(one, alone=alone) for one in models.all}

    @property
    def frontend(self) -> Frontend | None:
        """Of the first model: the only one where requests can be relayed too."""
        return None if self.models is None else self.models.first

    def run(self, rendered: RenderedRequest) -> AsyncGenerator[list[RequestOutput], None]:
        """Outputs of a rendered request; closing the generator ends all its stages.
        `InvalidRequest` if the model does not do what it asks for."""
        if self.models is not None:
            pooler = self.models.known(rendered.model).info.pooler
            check_task(rendered.generate.pooling, pooler)
        request, output = self._allowed(rendered.generate), rendered.output
        record = rendered.record
        record.streamed = output.stream
        record.media += len(request.mm_items)
        record.items = request.mm_items
        # -1 is unknown. A completion of several prompts comes here once for each, with one record.
        record.prompt_tokens = max(0, record.prompt_tokens) + len(request.token_ids)
        stops = bool(output.stop)
        timeline = Timeline(self.metrics, record, streamed=output.stream, stops=stops)
        caller = Caller(rendered.tenant, rendered.session)
        served = self._served.get(rendered.model)
        return self.pipeline.run(request, rendered.media, caller, timeline, served)

    def begun(self, record: RequestRecord) -> None:
        """A request begins, perhaps within a trace of its client's."""
        self.recent.begun(record)
        if self.tracer is not None:
            self.tracer.begin(record)

    def over(self, record: RequestRecord, *, relayed: bool = False) -> None:
        """A request has been answered, or given up. Of `relayed` ones not all have a record: those
        that the page alone asks for are not counted by model."""
        self.log.over(record, always=not relayed)
        if record.shown:
            self.recent.over(record)
        if record.trace is not None and self.tracer is not None:
            note_usage(record)
            self.tracer.end(record)

    def _allowed(self, request: GenerateRequest) -> GenerateRequest:
        """Without what a client may not say: where workers fetch KV and, unless media may be named
        by reference, embeddings. The model is known to be the right one; workers may call it by
        another name, but adapters as clients do."""
        check_ec_params(request.ec_transfer_params)
        named = request.ec_transfer_params if self.config.allow_media_references else None
        # KV places are prefill's to give: a client could have a worker fetch from anywhere.
        return msgspec.structs.replace(
            request,
            model=request.model if request.adapter_revision else "",
            kv_transfer_params=None,
            ec_transfer_params=named,
        )
