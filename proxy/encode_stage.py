"""The encode stage: each picture's bytes go to one encoder, once, however many requests ask."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from protocol.errors import Unavailable, UpstreamError, from_info
from protocol.generate import ENCODE_PATH, MSGPACK, EncodeAnswer, encode_encode
from protocol.types import EncodeItem, EncodeOutput, EncodeRequest, MMItem
from proxy.client import Unreachable, UpstreamClient
from proxy.fleet import Fleet, Instance

_KNOWN = 100_000


@dataclass
class _Flight:
    """One picture on its way through an encoder, for every request that waits for it."""

    task: asyncio.Task[dict[str, Any]]
    waiters: int = 0
    encoder: Instance | None = None


@dataclass
class EncodeStage:
    """`known` remembers which encoder held an item last; bytes are sent again only if it says that
    it does no longer."""

    fleet: Fleet
    client: UpstreamClient
    timeout_s: float
    _flights: dict[str, _Flight] = field(default_factory=dict)
    _known: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _finishing: set[asyncio.Task[Any]] = field(default_factory=set)

    async def run(
        self, request_id: str, items: Sequence[MMItem], media: Mapping[str, bytes]
    ) -> dict[str, dict[str, Any]]:
        """`ec_transfer_params` entries of every item whose bytes are at hand.

        Raises the first error; what other requests wait for goes on.
        """
        wanted = {item.mm_hash: item for item in items if item.mm_hash in media}
        entries = await asyncio.gather(
            *(self._join(request_id, item, media[name]) for name, item in wanted.items())
        )
        return dict(zip(wanted, entries, strict=True))

    @property
    def busy(self) -> bool:
        """Whether any picture is on its way."""
        return bool(self._flights)

    def let_finish(self, run: asyncio.Task[Any]) -> None:
        """Keep a `run` that nobody waits for any more, until it ends, whatever its result."""
        self._finishing.add(run)
        run.add_done_callback(self._finished)

    def _finished(self, run: asyncio.Task[Any]) -> None:
        self._finishing.discard(run)
        if not run.cancelled():
            run.exception()

    async def _join(self, request_id: str, item: MMItem, data: bytes) -> dict[str, Any]:
        """Wait for the item's flight, starting it if there is none; the last to leave ends it.

        Whoever joined asks again, without bytes: the encoder keeps an entry for every request that
        has asked for it.
        """
        flight = self._flights.get(item.mm_hash)
        joined = flight is not None
        if flight is None:
            task = asyncio.create_task(self._encode(request_id, item, data))
            flight = self._flights[item.mm_hash] = _Flight(task)
        flight.waiters += 1
        try:
            entry = await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                flight.task.cancel()
                if self._flights.get(item.mm_hash) is flight:
                    del self._flights[item.mm_hash]
        return await self._encode(request_id, item, data) if joined else entry

    def forget(self, items: Sequence[MMItem]) -> None:
        """Their consumer cannot get these from the encoders: bytes are sent again. An encoder that
        has not answered meanwhile is passed over until it is probed again; whoever waits for it
        goes on waiting."""
        for item in items:
            self._known.pop(item.mm_hash, None)
            flight = self._flights.pop(item.mm_hash, None)
            if flight is not None and flight.encoder is not None:
                flight.encoder.suspect = True

    def endpoints(self, items: Sequence[MMItem]) -> dict[str, dict[str, Any]]:
        """Where each item's embeddings can be asked for while they are being made, as far as its
        encoder says so."""
        places = {item.mm_hash: self.fleet.by_content(item.mm_hash) for item in items}
        return {name: i.ec_endpoint for name, i in places.items() if i.ec_endpoint is not None}

    async def _encode(self, request_id: str, item: MMItem, data: bytes) -> dict[str, Any]:
        """At the item's encoder; if that is gone, at the one that is next for it."""
        failure: Unreachable | None = None
        while True:
            try:
                encoder = self.fleet.by_content(item.mm_hash)
            except Unavailable:
                raise failure or Unavailable("no encode worker is up", retry_after_s=1.0) from None
            flight = self._flights.get(item.mm_hash)
            if flight is not None:
                flight.encoder = encoder
            try:
                return await self._encode_at(encoder, request_id, item, data)
            except Unreachable as error:
                failure, encoder.up = error, False  # until it is probed again

    async def _encode_at(
        self, encoder: Instance, request_id: str, item: MMItem, data: bytes
    ) -> dict[str, Any]:
        send = None if self._known.get(item.mm_hash) == encoder.url else data
        output = await self._call(encoder, request_id, item, send)
        if output.missing:
            output = await self._call(encoder, request_id, item, data)
        if output.error is not None:
            raise from_info(output.error)
        if output.params is None:
            raise UpstreamError(f"{encoder.url} neither encoded a picture nor said why")
        self._remember(item.mm_hash, encoder.url)
        return output.params

    async def _call(
        self, encoder: Instance, request_id: str, item: MMItem, data: bytes | None
    ) -> EncodeOutput:
        wanted = EncodeItem(item.mm_hash, item.modality, item.length, item.grid, data)
        name = f"{request_id}-{item.mm_hash[:16]}{'' if data is None else '-data'}"
        call = EncodeRequest(name, [wanted], deadline_s=self.timeout_s, holder=request_id)
        body = encode_encode(call)
        headers = {"content-type": MSGPACK}
        with encoder.serving():
            answer = await self.client.post(
                encoder.url + ENCODE_PATH, body, headers, self.timeout_s
            )
        try:
            (output,) = msgspec.json.decode(answer, type=EncodeAnswer).outputs
        except (msgspec.DecodeError, ValueError):
            raise UpstreamError(f"{encoder.url} answered an encode call with nonsense") from None
        return output

    def _remember(self, mm_hash: str, url: str) -> None:
        self._known[mm_hash] = url
        self._known.move_to_end(mm_hash)
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
