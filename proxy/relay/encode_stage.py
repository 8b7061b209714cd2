"""The encode stage of a relayed chat: what encoders say of each of its media items."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from protocol.encoder_cache import for_encoder
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance
from proxy.placement.planner import ItemEnd, Planner
from proxy.relay.bodies import digest_of
from proxy.relay.encode_calls import EncodeCall, EncodeCalls, Params, reference_of
from proxy.relay.media import EncodedMedia, MediaItem, Pushed, Reference
from proxy.relay.request_state import RelayedRequest
from proxy.upstream.answer import Body
from services.http.tasks import all_of


class _Encoded(NamedTuple):
    """What has become of an item: what stands for it, and its transfer if it is pushed."""

    reference: Reference | None = None
    pushed: Pushed | None = None


class RelayEncodeStage:
    """Requests whose embeddings are pushed to a consumer share no calls: each has its own
    transfers."""

    def __init__(self, planner: Planner, fleet: Fleet, calls: EncodeCalls) -> None:
        self._planner = planner
        self._fleet = fleet
        self._calls = calls

    async def run(self, request: RelayedRequest) -> EncodedMedia:
        """All items of a request at once; raises the first failure and leaves the others.

        An item stays in the request as it is if its encoder says nothing of it, or if the worker
        that prefills is to encode it.
        """
        items = request.body.items
        work = [self._item(request, item, number) for number, item in enumerate(items)]
        found = list(zip(items, await all_of(work), strict=True))
        known = [(item, one.reference) for item, one in found if one.reference is not None]
        pushed = [one.pushed for _, one in found if one.pushed is not None]
        if not request.exact:
            return EncodedMedia(known, pushed=pushed)
        named = zip(found, request.names, strict=True)
        unknown = [(item, name) for (item, one), name in named if one.reference is None]
        return EncodedMedia(known, unknown, pushed)

    async def _item(self, request: RelayedRequest, item: MediaItem, number: int) -> _Encoded:
        start, plan, name, place = time.monotonic(), request.plan, "", None
        if plan is not None:
            name = request.names[number]
            if name in plan.local:
                return _Encoded()
            place = plan.encoders.get(name)
        own_name = name if request.exact else ""
        body = request.body.encode_body(item, own_name)
        reader = self._reader(request)
        # A call goes out with one client's `Authorization`: others have a call of their own.
        key = digest_of(body, request.client.authorization) + reader.encode()
        fields = request.client.fields(f"-{number}".encode())
        call = EncodeCall(key, fields, request.model, reader, place, request.beside())
        pushed, encoder = None, ""
        try:
            if request.consumer is not None and request.consumer.address:
                said, encoder, pushed = await self._pushed(request, item, own_name, call)
            else:
                said, encoder = await self._calls.shared(call, body)
        finally:
            if plan is not None:
                end = ItemEnd.of(plan, name, start, encoder, call.tries)
                self._planner.encoded(request.placed_as, end)
        request.record.used("encode", encoder)
        return _Encoded(reference_of(said, item.modality), pushed)

    def _reader(self, request: RelayedRequest) -> str:
        """Without a plan the worker that reads an item is chosen once it is encoded."""
        if request.plan is not None:
            return request.plan.reader
        return _common_reader(self._fleet.prefill or self._fleet.decode)

    async def _pushed(
        self, request: RelayedRequest, item: MediaItem, name: str, call: EncodeCall
    ) -> tuple[Params, str, Pushed | None]:
        """With the transfer to the request's consumer. It is this item's alone, also of a picture
        that the request has twice, and of one try: the consumer may have reserved memory for an
        encoder that has failed."""
        consumer, transfer_id = request.consumer, ""
        assert consumer is not None

        def body() -> Body:
            nonlocal transfer_id
            transfer_id = uuid.uuid4().hex
            return request.body.encode_body(item, name, for_encoder(consumer.address, transfer_id))

        said, encoder = await self._calls.alone(call, body)
        one = len(said) == 1  # more are features of one item that no single transfer carries
        return said, encoder, Pushed(next(iter(said)), transfer_id) if one else None


def _common_reader(workers: Iterable[Instance]) -> str:
    """The EC compatibility that all of these share which say theirs, "" if they have several."""
    kinds = {worker.ec_compatibility for worker in workers} - {""}
    return kinds.pop() if len(kinds) == 1 else ""
