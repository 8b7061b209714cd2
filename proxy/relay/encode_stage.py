"""The encode stage: one call per media item, each item once however many requests ask for it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from protocol.encoder_cache import for_encoder, is_mm_hash
from protocol.openai import CHAT_PATH
from proxy.config import ProxyConfig
from proxy.dispatch import Dispatch
from proxy.fleet.fleet import Unreadable, rendezvous
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.placement.planner import Planner
from proxy.relay.bodies import digest_of
from proxy.relay.media import EncodedMedia, MediaItem, Pushed, Reference
from proxy.relay.request_state import RelayedRequest
from proxy.relay.response_validation import encoded
from proxy.request_state import Tries
from proxy.single_flight import SingleFlight
from proxy.upstream.answer import AnswerLimits, Body
from proxy.upstream.pools import ConnectionPools

# Calls beyond twice those of the least busy encoder: waiting costs more than its cache spares.
_BUSIER = 4
_Params = dict[str, Any]  # `ec_transfer_params` of an encoder's answer


@dataclass(frozen=True)
class _Call:
    """What all tries of an item's encode call share. `key`: of its content. `fields`: header lines.
    `place`: the encoder that a master has named. `model`: as the client names it. `reader`: the EC
    compatibility of the worker that is to read the item, as far as that is known by now."""

    key: bytes
    fields: bytes
    place: Instance | None
    model: str
    reader: str


class _Encoded(NamedTuple):
    """What has become of an item: what stands for it, and its transfer if it is pushed."""

    reference: Reference | None = None
    pushed: Pushed | None = None


class RelayEncodeStage:
    """Items go to the encoder that a master names, or to the one that their content points at, so
    that a repeated picture meets its cache, unless that one is much busier than the others.
    Requests whose embeddings are pushed to a consumer share no calls: each has its own transfers.
    """

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
        self._patience_s = config.encode_patience
        timeout_s = config.encode_timeout
        self._limits = AnswerLimits(timeout_s, timeout_s, config.max_answer_bytes)
        self._flights: SingleFlight[tuple[_Params, str]] = SingleFlight()

    async def run(self, request: RelayedRequest) -> EncodedMedia:
        """All items of a request at once; raises the first failure and leaves the others.

        An item stays in the request as it is if its encoder says nothing of it, or if the worker
        that prefills is to encode it.
        """
        tasks: list[asyncio.Task[_Encoded]] = []
        items = request.body.items
        try:
            async with asyncio.TaskGroup() as group:
                for number, item in enumerate(items):
                    tasks.append(group.create_task(self._item(request, item, number)))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        found = [(item, task.result()) for item, task in zip(items, tasks, strict=True)]
        known = [(item, one.reference) for item, one in found if one.reference is not None]
        pushed = [one.pushed for _, one in found if one.pushed is not None]
        if not request.exact:
            return EncodedMedia(known, pushed=pushed)
        named = zip(found, request.names, strict=True)
        unknown = [(item, name) for (item, one), name in named if one.reference is None]
        return EncodedMedia(known, unknown, pushed)

    async def _item(self, request: RelayedRequest, item: MediaItem, number: int) -> _Encoded:
        start, name, place = time.monotonic(), "", None
        if request.plan is not None:
            name = request.names[number]
            if name in request.plan.local:
                return _Encoded()
            place = request.plan.encoders.get(name)
        own_name = name if request.exact else ""
        body = request.body.encode_body(item, own_name)
        reader = self._reader(request)
        # A call goes out with one client's `Authorization`: others have a call of their own.
        key = digest_of(body, request.client.authorization) + reader.encode()
        fields = request.client.fields(f"-{number}".encode())
        call = _Call(key, fields, place, request.model, reader)
        pushed: Pushed | None = None
        if request.consumer is not None and request.consumer.address:
            said, encoder, pushed = await self._pushed(request, item, own_name, call)
        else:
            (said, encoder), _ = await self._flights.join(
                key, lambda: self._encode(call, lambda: body)
            )
        request.record.used("encode", encoder)
        if request.plan is not None:
            self._planner.stage_over(request.placed_as, "encode", time.monotonic() - start, name)
        return _Encoded(_reference(said, item.modality), pushed)

    def _reader(self, request: RelayedRequest) -> str:
        """Without a plan the worker that reads an item is chosen once it is encoded."""
        if request.plan is not None:
            return request.plan.reader
        fleet = self._dispatch.fleet
        return common_reader(fleet.prefill or fleet.decode)

    async def _pushed(
        self, request: RelayedRequest, item: MediaItem, name: str, call: _Call
    ) -> tuple[_Params, str, Pushed | None]:
        """As `_encode`, with the transfer to the request's consumer. It is this item's alone, also
        of a picture that the request has twice, and of one try: the consumer may have reserved
        memory for an encoder that has failed."""
        consumer, transfer_id = request.consumer, ""
        assert consumer is not None

        def body() -> Body:
            nonlocal transfer_id
            transfer_id = uuid.uuid4().hex
            return request.body.encode_body(item, name, for_encoder(consumer.address, transfer_id))

        said, encoder = await self._encode(call, body)
        one = len(said) == 1  # more are features of one item that no single transfer carries
        return said, encoder, Pushed(next(iter(said)), transfer_id) if one else None

    async def _encode(self, call: _Call, body: Callable[[], Body]) -> tuple[_Params, str]:
        """What an encoder says of an item, and its URL. `body` makes that of each try."""
        tries = Tries(
            deadline=time.monotonic() + self._patience_s, request_id=f"item {call.key.hex()[:16]}"
        )

        async def work(encoder: Instance) -> tuple[_Params, str]:
            pool = self._pools.of(encoder)
            async with pool.room:
                exchange, answer = await pool.ask(CHAT_PATH, call.fields, body(), self._limits)
                exchange.abort()
            return encoded(pool.url, answer), encoder.url

        def choose() -> Instance:
            place = call.place
            if place is not None and not tries.avoid and place.serves(time.monotonic()):
                return place
            return self._choose(call, tries.avoid)

        return await self._dispatch.tried(tries, "encode", choose, work)

    def _choose(self, call: _Call, avoid: Sequence[Instance]) -> Instance:
        fleet = self._dispatch.fleet
        able = fleet.usable("encode", avoid, call.model, call.reader)
        if not able:
            others = call.reader and fleet.usable("encode", (), call.model)
            raise Unreadable() if others else fleet.no_worker("encode")
        most = 2 * min(instance.in_flight for instance in able) + _BUSIER
        return rendezvous([i for i in able if i.in_flight <= most], call.key.hex())


def _reference(params: _Params, modality: str) -> Reference | None:
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


def common_reader(workers: Iterable[Instance]) -> str:
    """The EC compatibility that all of these share which say theirs, "" if they have several."""
    kinds = {worker.ec_compatibility for worker in workers} - {""}
    return kinds.pop() if len(kinds) == 1 else ""
