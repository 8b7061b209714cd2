"""One request through encode, prefill and decode workers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec

from protocol.generate import ABORT_PATH
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.metrics import ProxyMetrics
from proxy.relay.attempts import Attempts, was_begun
from proxy.relay.data_urls import Body, size_of
from proxy.relay.encode_stage import Encoding
from proxy.relay.request_state import RelayedRequest
from proxy.relay.response_validation import Refused, check_stream, check_whole, prefilled
from proxy.relay.resume.resume import Resumer
from proxy.upstream.connection import Answer, CallFailed, Limits
from proxy.upstream.connection_pool import ConnectionPool
from proxy.upstream.exchange import Exchange

_ABORT_S = 2.0
_REFUSALS = (400, 415, 422)


class Stages:
    def __init__(
        self, fleet: Fleet, config: ProxyConfig, metrics: ProxyMetrics, attempts: Attempts
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._attempts = attempts
        self._send_media = config.send_media
        self._encoding = Encoding(attempts, config, metrics)
        self._resuming = Resumer(fleet, config, metrics, attempts)
        self._releases: set[asyncio.Task[None]] = set()
        stall_s, most = config.stall_timeout, config.max_answer_bytes
        self._prefill_limits = Limits(config.prefill_timeout, stall_s, most)
        self._decode_limits = Limits(config.decode_timeout, stall_s, most)
        self._stream_limits = Limits(config.first_token_timeout, stall_s, most)

    async def close(self) -> None:
        """Wait for handles that are being given back."""
        if self._releases:
            await asyncio.wait(self._releases)

    async def run(self, job: RelayedRequest) -> None:
        """All stages, again as long as the client has had nothing and another try may help.
        A stream that it has had some of is resumed where that can be done.

        Raises `Refused`, `CallFailed` or `Unavailable` in the end. Cancelled, it ends every stage.
        """
        attempt = 0
        try:
            while True:
                await self._encode(job)
                try:
                    await self._prefill(job)
                    await self._decode(job)
                    return
                except (CallFailed, Refused) as failure:
                    if job.reply.started:
                        await self._resuming.go_on(job, failure)
                        return
                    if not self._attempts.again(failure, attempt, "request"):
                        raise
                    if was_begun(failure):
                        self._forget(job)
                await self._attempts.backoff(attempt)
                attempt += 1
        finally:
            self._forget(job)

    async def _encode(self, job: RelayedRequest) -> None:
        if job.request.items and job.media is None:
            start = time.monotonic()
            job.media = await self._encoding.run(job.call, job.request)
            self._metrics.stage_encode.observe(time.monotonic() - start)

    async def _prefill(self, job: RelayedRequest) -> None:
        if not self._fleet.prefill or job.prefill is not None:
            return
        start = time.monotonic()
        limits = self._prefill_limits

        async def work(pool: ConnectionPool, fresh: bool) -> None:
            def body(references: bool) -> Body:
                return job.request.prefill_body(job.media, references=references)

            exchange, answer = await self._ask(job, pool, body, limits, fresh)
            exchange.abort()  # should it stream, against all agreement
            job.handed = prefilled(pool.url, answer)
            job.prefill = pool

        instance = self._attempts.pick("prefill", job.avoid)
        await self._attempts.once(instance, job.avoid, work)
        self._metrics.stage_prefill.observe(time.monotonic() - start)

    async def _decode(self, job: RelayedRequest) -> None:
        stream = job.request.stream
        limits = self._stream_limits if stream else self._decode_limits
        instance = self._attempts.pick("decode", job.avoid)

        async def work(pool: ConnectionPool, fresh: bool) -> None:
            job.recorder = recorder = (
                self._resuming.recorder(job, instance) if self._fleet.resumers else None
            )
            ids = recorder is not None and not recorder.asked

            def body(references: bool) -> Body:
                return job.request.decode_body(
                    job.media, job.handed, references=references, ids=ids
                )

            exchange, answer = await self._ask(job, pool, body, limits, fresh)
            try:
                check = check_stream if stream else check_whole
                check(pool.url, answer)
                job.handed = None
                if stream:
                    await self._forward(job, exchange, answer)
                else:
                    job.reply.whole(answer)
            finally:
                exchange.abort()

        await self._attempts.once(instance, job.avoid, work)
        if job.recorder is not None:
            instance.fingerprint = job.recorder.progress.fingerprint or instance.fingerprint

    async def _forward(self, job: RelayedRequest, exchange: Exchange, answer: Answer) -> None:
        """The stream as it comes, from its first event on."""
        reply, first = job.reply, time.monotonic()
        begin: Callable[[bytes], None] = reply.begin
        sink: Callable[[bytes], None] = reply.forward
        if job.recorder is not None:
            begin = sink = job.recorder.feed
        self._metrics.ttft.observe(first - job.start)
        job.source(exchange)
        try:
            begin(answer.body)
            await exchange.forward(sink)
            reply.end()
        finally:
            job.source(None)
            if reply.events > 1:
                gap = (time.monotonic() - first) / (reply.events - 1)
                self._metrics.per_event.observe(gap)

    async def _ask(
        self,
        job: RelayedRequest,
        pool: ConnectionPool,
        body: Callable[[bool], Body],
        limits: Limits,
        fresh: bool,
    ) -> tuple[Exchange, Answer]:
        """A worker's answer, with media by reference, or with their bytes if it refuses that.

        A stream goes on in the exchange, which is the caller's to end.
        """
        named = job.media is not None and bool(job.media.references) and not self._send_media
        named = named and pool.takes_references(time.monotonic())
        refused = False
        while True:
            data = body(named and not refused)
            exchange = await pool.start(job.call.path, job.fields, data, limits, fresh=fresh)
            self._metrics.sent(size_of(data))
            try:
                answer = await exchange.ready
            except BaseException:
                exchange.abort()
                raise
            if refused and answer.status == 200:
                pool.refuses_references(time.monotonic())
            if refused or not named or answer.status not in _REFUSALS:
                return exchange, answer
            refused = True

    def _forget(self, job: RelayedRequest) -> None:
        """Start anew; prefill is told that nobody will take what it holds, without waiting."""
        handed, pool = job.handed, job.prefill
        job.media = job.handed = job.prefill = None
        name = handed.get("remote_request_id") if handed is not None else None
        if pool is not None and isinstance(name, str):
            task = asyncio.create_task(_release(pool, job.fields, name))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)


async def _release(pool: ConnectionPool, fields: bytes, request_id: str) -> None:
    """Bounded by `_ABORT_S`; a worker that cannot be told frees by its own lease."""
    body = (msgspec.json.encode({"request_ids": [request_id]}),)
    limits = Limits(_ABORT_S, _ABORT_S, 1 << 20)
    with contextlib.suppress(CallFailed):
        exchange = await pool.start(ABORT_PATH, fields, body, limits)
        try:
            await exchange.ready
        finally:
            exchange.abort()
