"""The encode stage of a request that is passed on: its worker may have no vision model."""

from __future__ import annotations

import time
from typing import Any

from proxy.fleet.worker import Instance
from proxy.gateway import Gateway
from proxy.placement.planner import ItemEnd
from proxy.relay.bodies import digest_of
from proxy.relay.encode_calls import EncodeCall, EncodeCalls, reference_of
from proxy.relay.media import EncodedMedia, MediaItem, Reference
from proxy.relay.passed_request import PassedRequest
from proxy.upstream.failures import Refused
from services.http.tasks import all_of

_NAME = "x-request-id"


class PassedEncoding:
    """Asks encoders as chats do; their bound of calls at once is that of both."""

    def __init__(self, gateway: Gateway) -> None:
        self._fleet = gateway.fleet
        self._planner = gateway.planner
        self._calls = EncodeCalls(gateway)
        self._authorization = gateway.config.authorization

    @property
    def fetched(self) -> bool:
        """Whether workers get embeddings from encoders."""
        # What encoders push needs a place with one consumer: such a worker encodes by itself.
        return bool(self._fleet.encode) and not self._fleet.pushed_to

    def needed(self, request: PassedRequest, worker: Instance) -> bool:
        """Whether `worker` may lack embeddings of the request's media."""
        return bool(request.items) and self.fetched and not worker.does_all

    async def params(self, request: PassedRequest, worker: Instance) -> dict[str, Any]:
        """`ec_transfer_params` for `worker`, which has the media too.

        Raises the first failure and leaves the others. An item that an encoder refuses is left out:
        the worker refuses it by the name that it has in its route's form.
        """
        work = [self._item(request, worker, item, i) for i, item in enumerate(request.items)]
        found = zip(request.items, await all_of(work), strict=True)
        return EncodedMedia([(item, one) for item, one in found if one is not None]).params()

    async def _item(
        self, request: PassedRequest, worker: Instance, item: MediaItem, number: int
    ) -> Reference | None:
        assert request.read is not None and request.plan is not None
        start, plan = time.monotonic(), request.plan
        name = request.names[number] if request.names else ""
        if name in plan.local:
            return None
        body, reader = request.read.encode_body(item), worker.ec_compatibility
        headers = {"authorization": self._authorization} if self._authorization else {}
        headers |= {**request.headers, _NAME: f"{request.headers[_NAME]}-{number}"}
        del headers["content-type"]
        # A call goes out with one client's `Authorization`: others have a call of their own.
        key = digest_of(body, headers.get("authorization", "").encode()) + reader.encode()
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        place, tries = plan.encoders.get(name), request.beside()
        call = EncodeCall(key, fields.encode(), request.model, reader, place, tries)
        encoder = ""
        try:
            said, encoder = await self._calls.shared(call, body)
        except Refused as refused:
            if refused.again:
                raise
            return None
        finally:
            end = ItemEnd.of(plan, name, start, encoder, call.tries)
            self._planner.encoded(request.placed_as, end)
        request.record.used("encode", encoder)
        return reference_of(said, item.modality)
