"""One request through encode, prefill and decode workers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from protocol.errors import TriptychError
from proxy.dispatch import Calling
from proxy.fleet.fleet import NoWorker
from proxy.gateway import Gateway
from proxy.placement.planner import AttemptEnd, Plan
from proxy.relay.encode_calls import EncodeCalls
from proxy.relay.encode_stage import RelayEncodeStage
from proxy.relay.needs import Needs
from proxy.relay.request_state import RelayedRequest, with_cached_tokens
from proxy.relay.response_validation import check_stream, check_whole, prefilled
from proxy.relay.resume.resume import Resumer
from proxy.relay.stage_workers import Releases, StageWorkers
from proxy.upstream.answer import Answer, AnswerLimits, Body
from proxy.upstream.connection_pool import ConnectionPool
from proxy.upstream.exchange import Exchange
from proxy.upstream.failures import failure_of

_REFUSALS = (400, 415, 422)  # how engines answer a content part that they do not know


class RelayStages:
    """Drives relayed requests. `close` waits for handles that are being given back."""

    def __init__(self, gateway: Gateway) -> None:
        config, fleet = gateway.config, gateway.fleet
        self._fleet = fleet
        self._metrics = gateway.metrics
        self._planner = gateway.planner
        self._dispatch = gateway.dispatch
        self._pools = gateway.pools
        self._needs = Needs(fleet, gateway.frontend)
        self._send_media = config.send_media
        self._workers = StageWorkers(fleet)
        self._encoding = RelayEncodeStage(gateway.planner, fleet, EncodeCalls(gateway))
        self._resumer = Resumer(config, gateway.metrics, gateway.dispatch, gateway.pools)
        self._releases = Releases()
        stall_s, most = config.stall_timeout, config.max_answer_bytes
        self._prefill_limits = AnswerLimits(config.prefill_timeout, stall_s, most)
        self._decode_limits = AnswerLimits(config.decode_timeout, stall_s, most)
        self._stream_limits = AnswerLimits(config.first_token_timeout, stall_s, most)

    async def close(self) -> None:
        await self._releases.close()

    async def run(self, request: RelayedRequest) -> None:
        """All stages, again as long as the client has had nothing and another try may help.
        A stream that it has had some of is resumed where that can be done.

        Raises what the last attempt has failed with. Cancelled, it ends every stage.
        """
        try:
            while True:
                if self._planner.asks:
                    request.plan = await self._dispatch.placed(request, lambda: self._plan(request))
                if await self._attempted(request):
                    return
        finally:
            self._releases.forget(request)

    async def _plan(self, request: RelayedRequest) -> Plan:
        need = await self._needs.of(request)
        request.placed_as = need.request_id
        return await self._planner.place(request, need)

    async def _attempted(self, request: RelayedRequest) -> bool:
        """Whether the client has its answer; False after the pause before another attempt."""
        end: AttemptEnd | None = None
        try:
            if request.body.items and self._fleet.encode and request.media is None:
                await self._encode(request)
            try:
                if self._fleet.prefill:
                    await self._prefill(request)
                end = await self._decode(request)
                return True
            except TriptychError as error:
                if request.begun:
                    await self._resumer.go_on(request, error)
                    return True
                if isinstance(error, NoWorker) and request.prefill is not None:
                    self._releases.forget(request)  # a worker that prefills does both
                    return False
                failure = failure_of(error)
                # The worker may have taken the KV before it failed: prefill has to be done again.
                if failure.sent and failure.charged:
                    self._releases.forget(request)
                await self._dispatch.again(request, error, "request")
                return False
        finally:
            if request.plan is not None:
                end = end or AttemptEnd(aborted=True, failed=request.take_blamed())
                self._planner.over(request.placed_as, end)
                request.plan = None
            if request.consumer is not None:
                self._workers.leave(request)

    async def _encode(self, request: RelayedRequest) -> None:
        if not self._fleet.pushed_to:
            with request.record.during("encode"):
                request.media = await self._encoding.run(request)
            return
        consumer = await self._dispatch.placed(request, lambda: self._workers.consumer(request))
        request.consumer = consumer
        # Counted as a call there, so that other requests choose other consumers meanwhile.
        with request.record.during("encode"), consumer.instance.serving():
            request.media = await self._encoding.run(request)

    async def _prefill(self, request: RelayedRequest) -> None:
        if not self._workers.prefills_apart(request):
            return
        plan, instance = request.plan, self._workers.of(request, "prefill")

        def body(references: bool) -> Body:
            return request.body.prefill_body(request.media, references=references)

        pool = self._pools.of(instance)
        with self._dispatch.calling(request, instance, "prefill") as call:
            exchange, answer = await self._ask(request, pool, body, self._prefill_limits)
            exchange.abort()  # should it stream, against all agreement
            found = prefilled(pool.url, answer)
            request.handed, request.cached_tokens = found.handed, found.cached_tokens
            request.prefill, request.kv_compatibility = pool, instance.kv_compatibility
            if request.cached_tokens is not None:
                request.record.cached_tokens = request.cached_tokens
        if plan is not None:
            self._planner.prefilled(request.placed_as, call.elapsed_s)

    async def _decode(self, request: RelayedRequest) -> AttemptEnd | None:
        """Ends when the client has all of its answer; how it went, if that is to be told."""
        stream, plan = request.body.stream, request.plan
        limits = self._stream_limits if stream else self._decode_limits
        instance = self._workers.of(request, "decode")
        recorder = self._resumer.recorder(request, instance) if self._fleet.resumers else None
        request.decoder, request.recorder = instance, recorder
        ids = recorder is not None and not recorder.asked
        begin, sink = request.sinks(instance.url) if stream else (None, None)

        def body(references: bool) -> Body:
            return request.body.decode_body(
                request.media, request.handed, references=references, ids=ids
            )

        pool, first_s = self._pools.of(instance), 0.0
        with self._dispatch.calling(request, instance, "decode") as call:
            exchange, answer = await self._ask(request, pool, body, limits, sink)
            try:
                (check_stream if stream else check_whole)(pool.url, answer)
                # Its decode worker has the KV, and frees prefill's: none is to be given back.
                request.handed = None
                if begin is not None:
                    first_s = call.so_far_s if plan else 0.0
                    if plan is not None and plan.prefill is None:
                        # A worker that does both says nothing of its prompts but by their tokens.
                        self._planner.prefilled(request.placed_as, first_s)
                    await self._forward(request, exchange, answer, begin)
                else:
                    self._whole(request, answer)
            finally:
                exchange.abort()
        if recorder is not None:
            instance.fingerprint = recorder.progress.fingerprint or instance.fingerprint
        return None if plan is None else _end_of(request, call, first_s)

    @staticmethod
    def _whole(request: RelayedRequest, answer: Answer) -> None:
        if (count := request.cached_tokens) is not None:
            answer = answer._replace(body=with_cached_tokens(answer.body, count))
        request.response.whole(answer)

    async def _forward(
        self,
        request: RelayedRequest,
        exchange: Exchange,
        answer: Answer,
        begin: Callable[[bytes], None],
    ) -> None:
        """The stream as it comes, from its first event on."""
        response, first = request.response, time.monotonic()
        if not request.record.first_at:  # else an attempt before had come as far
            self._metrics.ttft.observe(first - request.start)
            request.record.first_output(first)
        request.source(exchange)
        try:
            begin(answer.body)
            await exchange.forward()
            response.end()
        finally:
            request.source(None)
            if response.events > 1:
                gap = (time.monotonic() - first) / (response.events - 1)
                self._metrics.per_event.observe(gap)

    def _ask(
        self,
        request: RelayedRequest,
        pool: ConnectionPool,
        body: Callable[[bool], Body],
        limits: AnswerLimits,
        sink: Callable[[bytes], None] | None = None,
    ) -> Awaitable[tuple[Exchange, Answer]]:
        """A worker's answer. A stream goes on in the exchange, which is the caller's to end."""
        # Not a coroutine: one more of them would take each text request a microsecond longer.
        if request.media is None:
            return pool.ask(request.client.path, request.fields, body(False), limits, sink)
        return self._ask_with_media(request, pool, body, limits, sink)

    async def _ask_with_media(
        self,
        request: RelayedRequest,
        pool: ConnectionPool,
        body: Callable[[bool], Body],
        limits: AnswerLimits,
        sink: Callable[[bytes], None] | None,
    ) -> tuple[Exchange, Answer]:
        """With media by reference, or with their bytes if the worker refuses that."""
        media, path, fields = request.media, request.client.path, request.fields_at(pool.url)
        named = media is not None and bool(media.references) and not self._send_media
        named = named and pool.takes_references(time.monotonic())
        refused = False
        while True:
            data = body(named and not refused)
            exchange, answer = await pool.ask(path, fields, data, limits, sink)
            if refused and answer.status == 200:
                pool.refuses_references(time.monotonic())
            if refused or not named or answer.status not in _REFUSALS:
                return exchange, answer
            refused = True


def _end_of(request: RelayedRequest, call: Calling, first_s: float) -> AttemptEnd:
    tokens = request.response.events if request.body.stream else 0  # about one an event
    return AttemptEnd(False, (), call.elapsed_s, first_s, tokens)
