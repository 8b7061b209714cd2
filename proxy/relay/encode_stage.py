"""The encode stage: one request per media item, each item once however many requests ask."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from proxy.config import ProxyConfig
from proxy.fleet.fleet import rendezvous
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.relay.attempts import Attempts
from proxy.relay.bodies import EncodedMedia, MediaItem, Reference, RequestBody
from proxy.relay.data_urls import Body, size_of
from proxy.relay.request import ClientRequest
from proxy.relay.response_validation import encoded
from proxy.upstream.connection import Limits
from proxy.upstream.connection_pool import ConnectionPool

_BUSIER = 4


@dataclass
class _Flight:
    """One item on its way through an encoder, for every request that waits for it."""

    task: asyncio.Task[Reference | None]
    waiters: int = 0


class Encoding:
    """Items go to the encoder that their content points at, so that a repeated picture meets its
    cache, unless that one is much busier than the others."""

    def __init__(self, attempts: Attempts, config: ProxyConfig, metrics: ProxyMetrics) -> None:
        self._attempts = attempts
        self._metrics = metrics
        self._limits = Limits(config.encode_timeout, config.encode_timeout, config.max_answer_bytes)
        self._flights: dict[bytes, _Flight] = {}

    async def run(self, call: ClientRequest, request: RequestBody) -> EncodedMedia:
        """All items of a request at once; raises the first failure and leaves the others.

        An item that its encoder says nothing of stays in the request as it is.
        """
        tasks: list[asyncio.Task[Reference | None]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number, item in enumerate(request.items):
                    tasks.append(group.create_task(self._join(call, request, item, number)))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        found = [(item, task.result()) for item, task in zip(request.items, tasks, strict=True)]
        return EncodedMedia([(item, known) for item, known in found if known is not None])

    async def _join(
        self, call: ClientRequest, request: RequestBody, item: MediaItem, number: int
    ) -> Reference | None:
        """Wait for the item's flight, starting it if there is none; the last to leave ends it."""
        body = request.encode_body(item)
        key = _key(body, call.authorization)
        flight = self._flights.get(key)
        if flight is None or flight.task.done():
            fields = call.fields(f"-{number}".encode())
            task = asyncio.create_task(self._encode(key, fields, body, item.modality))
            flight = self._flights[key] = _Flight(task)
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                flight.task.cancel()
                if self._flights.get(key) is flight:
                    del self._flights[key]

    async def _encode(
        self, key: bytes, fields: bytes, body: Body, modality: str
    ) -> Reference | None:
        async def work(pool: ConnectionPool, fresh: bool) -> Reference | None:
            async with pool.room:
                exchange = await pool.start(
                    ClientRequest.CHAT, fields, body, self._limits, fresh=fresh
                )
                self._metrics.sent(size_of(body))
                try:
                    answer = await exchange.ready
                finally:
                    exchange.abort()
            return _reference(encoded(pool.url, answer), modality)

        return await self._attempts.retried(lambda avoid: self._choose(key, avoid), work)

    def _choose(self, key: bytes, avoid: Sequence[Instance]) -> Instance:
        able = self._attempts.admitted("encode")
        fresh = [instance for instance in able if instance not in avoid] or able
        most = 2 * min(instance.in_flight for instance in fresh) + _BUSIER
        return rendezvous([i for i in fresh if i.in_flight <= most], key.hex())


def _key(body: Body, authorization: bytes) -> bytes:
    """What makes two encode calls the same: all that is sent, and on whose behalf."""
    digest = blake3(authorization + b"\n")
    for part in body:
        digest.update(part)
    return digest.digest()


def _reference(params: dict[str, object], modality: str) -> Reference | None:
    """The one entry of an encoder's answer, if it is enough to do without the media."""
    if len(params) != 1:
        return None
    ((mm_hash, entry),) = params.items()
    if not isinstance(entry, dict) or not isinstance(entry.get("metadata"), dict):
        return None
    if not entry["metadata"] or entry.get("modality", modality) != modality:
        return None
    return Reference(mm_hash, entry)
