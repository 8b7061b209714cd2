"""The encode stage: one request per media item, each item once however many requests ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from protocol.ec_params import is_mm_hash
from protocol.openai import CHAT_PATH
from proxy.config import ProxyConfig
from proxy.dispatch import Dispatch
from proxy.fleet.fleet import rendezvous
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.placement.planner import Planner
from proxy.relay.bodies import digest_of
from proxy.relay.media import EncodedMedia, MediaItem, Reference
from proxy.relay.request_state import RelayedRequest
from proxy.relay.response_validation import encoded
from proxy.request_state import Tries
from proxy.single_flight import SingleFlight
from proxy.upstream.answer import AnswerLimits, Body
from proxy.upstream.pools import ConnectionPools

_BUSIER = 4


class RelayEncodeStage:
    """Items go to the encoder that a master names, or to the one that their content points at, so
    that a repeated picture meets its cache, unless that one is much busier than the others."""

    def __init__(
        self,
        config: ProxyConfig,
        metrics: ProxyMetrics,
        planner: Planner,
        dispatch: Dispatch,
        pools: ConnectionPools,
    ) -> None:
        self._metrics = metrics
        self._planner = planner
        self._dispatch = dispatch
        self._pools = pools
        self._patience_s = config.encode_timeout * (1 + config.max_retries)
        timeout_s = config.encode_timeout
        self._limits = AnswerLimits(timeout_s, timeout_s, config.max_answer_bytes)
        self._flights: SingleFlight[tuple[Reference | None, str]] = SingleFlight()

    async def run(self, request: RelayedRequest) -> EncodedMedia:
        """All items of a request at once; raises the first failure and leaves the others.

        An item stays in the request as it is if its encoder says nothing of it, or if the worker
        that prefills is to encode it.
        """
        tasks: list[asyncio.Task[Reference | None]] = []
        items = request.body.items
        try:
            async with asyncio.TaskGroup() as group:
                for number, item in enumerate(items):
                    tasks.append(group.create_task(self._item(request, item, number)))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        found = [(item, task.result()) for item, task in zip(items, tasks, strict=True)]
        known = [(item, reference) for item, reference in found if reference is not None]
        if not request.exact:
            return EncodedMedia(known)
        named = zip(found, request.names, strict=True)
        return EncodedMedia(known, [(item, name) for (item, has), name in named if has is None])

    async def _item(
        self, request: RelayedRequest, item: MediaItem, number: int
    ) -> Reference | None:
        start, name, place = time.monotonic(), "", None
        if request.plan is not None:
            name = request.names[number]
            if name in request.plan.local:
                return None
            place = request.plan.encoders.get(name)
        body = request.body.encode_body(item, name if request.exact else "")
        fields = request.client.fields(f"-{number}".encode())
        key = digest_of(body, request.client.authorization)
        (found, encoder), _ = await self._flights.join(
            key, lambda: self._encode(key, fields, body, item.modality, place, request.model)
        )
        request.record.used("encode", encoder)
        if request.plan is not None:
            self._planner.stage_over(request.placed_as, "encode", time.monotonic() - start, name)
        return found

    async def _encode(
        self,
        key: bytes,
        fields: bytes,
        body: Body,
        modality: str,
        place: Instance | None,
        model: str,
    ) -> tuple[Reference | None, str]:
        """What an encoder says of an item, and its URL."""
        tries = Tries(
            deadline=time.monotonic() + self._patience_s, request_id=f"item {key.hex()[:16]}"
        )

        async def work(encoder: Instance) -> tuple[Reference | None, str]:
            pool = self._pools.of(encoder)
            async with pool.room:
                exchange, answer = await pool.ask(CHAT_PATH, fields, body, self._limits)
                exchange.abort()
            return _reference(encoded(pool.url, answer), modality), encoder.url

        def choose() -> Instance:
            planned = place is not None and not tries.avoid and place.serves(time.monotonic())
            return place if planned and place is not None else self._choose(key, tries.avoid, model)

        return await self._dispatch.tried(tries, "encode", choose, work)

    def _choose(self, key: bytes, avoid: Sequence[Instance], model: str) -> Instance:
        able = self._dispatch.fleet.usable("encode", avoid, model)
        if not able:
            raise self._dispatch.fleet.nobody("encode")
        most = 2 * min(instance.in_flight for instance in able) + _BUSIER
        return rendezvous([i for i in able if i.in_flight <= most], key.hex())


def _reference(params: dict[str, object], modality: str) -> Reference | None:
    """The one entry of an encoder's answer, if it is enough to do without the media."""
    if len(params) != 1:
        return None
    ((mm_hash, entry),) = params.items()
    if not isinstance(entry, dict) or not isinstance(entry.get("metadata"), dict):
        return None
    if not entry["metadata"] or entry.get("modality", modality) != modality:
        return None
    # Our encoders key by the client's uuid, under which another item of the request may come too.
    content = entry.get("mm_hash")
    return Reference(content if is_mm_hash(content) else mm_hash, entry)
