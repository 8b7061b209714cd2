"""The encode stage: each picture's bytes go to one encoder, once, however many requests ask."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.decoding import decoded
from protocol.errors import DeadlineExceeded, TriptychError, UpstreamError, from_worker
from protocol.generate import ENCODE_PATH, MSGPACK, encode_encode, encode_item
from protocol.generate_answers import EncodeAnswer
from protocol.request_record import traced
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, MMItem
from proxy.dispatch import Dispatch
from proxy.fleet.fleet import NoWorker
from proxy.fleet.worker import Instance
from proxy.placement.planner import ItemEnd, Plan
from proxy.request_state import Tries
from proxy.single_flight import SingleFlight
from proxy.tokens.encoder_choice import another_encoder, is_spent, pass_blame, tries_of
from proxy.upstream.client import UpstreamClient
from proxy.upstream.failures import CallFailed
from proxy.upstream.patience import Patience

_KNOWN = 100_000  # items whose encoder is remembered


@dataclass(frozen=True)
class _Item:
    """An item of a request, `state`, with its bytes, and what is planned for the attempt that needs
    it. `tries`: to encode it on behalf of this request."""

    holder: str
    item: MMItem
    data: bytes
    state: Tries
    plan: Plan
    tries: Tries

    @property
    def mm_hash(self) -> str:
        return self.item.mm_hash

    @property
    def key(self) -> str:
        return _key(self.item, self.plan)


def _key(item: MMItem, plan: Plan) -> str:
    """Of an item's flight, and of its encoder."""
    # The size too: a caller may name pictures of several sizes alike. Neither is shared by workers
    # that cannot read from one encoder, nor by models, which have encoders of their own also where
    # their weights are the same.
    size = "x".join(map(str, (item.length, *item.grid)))
    return " ".join(filter(None, (item.mm_hash, size, plan.reader, plan.model)))


@dataclass
class EncodeStage:
    """`timeout_s`: of one call; `patience_s`: of an item with all its tries.
    `known` remembers which encoder held an item last; bytes are sent again only if it says that
    it does no longer."""

    # An encoder hears of every picture at once: one that its store has no room for is answered when
    # consumers have come for others, which may wait for any of those that are still to be sent.
    dispatch: Dispatch
    client: UpstreamClient
    timeout_s: float
    patience_s: float
    _flights: SingleFlight[bool] = field(default_factory=SingleFlight)
    _known: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _finishing: set[asyncio.Task[Any]] = field(default_factory=set)

    async def run(
        self,
        request: GenerateRequest,
        media: Mapping[str, bytes],
        plan: Plan,
        state: Tries,
        done: Callable[[ItemEnd], None],
    ) -> None:
        """Every item whose bytes are at hand is with an encoder; `done` is told how that went.
        `state`: of the request that waits for them all.

        Raises the first error; what other requests wait for goes on.
        """
        record = state.record

        async def one(name: str, mm_item: MMItem) -> None:
            start, maker = time.monotonic(), ""
            deadline = start + self.patience_s
            tries = tries_of(name, plan, deadline, request.request_id, state.charged)
            item = _Item(request.request_id, mm_item, media[name], state, plan, tries)
            try:
                cached = await self._join(item)
                maker = self._known.get(item.key, "")
                record.embedded += cached
                record.used("encode", maker)
            finally:
                done(ItemEnd.of(plan, name, start, maker, tries))

        # A picture that stands in the request twice is encoded once.
        wanted = {
            item.mm_hash: item
            for item in request.mm_items
            if item.mm_hash in media and item.mm_hash not in plan.held
        }
        tasks = [asyncio.create_task(one(name, item)) for name, item in wanted.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                # A flight goes on for the other requests that wait for it.
                task.cancel()

    @property
    def busy(self) -> bool:
        """Whether any picture is on its way."""
        return bool(len(self._flights))

    def let_finish(self, run: asyncio.Task[Any]) -> None:
        """Keep a `run` whose request has gone on without it, until it ends."""
        self._finishing.add(run)
        run.add_done_callback(self._finished)

    def _finished(self, run: asyncio.Task[Any]) -> None:
        self._finishing.discard(run)
        if not run.cancelled():
            run.exception()  # or asyncio would log it; requests that wait have their own

    async def _join(self, item: _Item) -> bool:
        """A request that joined a flight asks again, without bytes: the encoder keeps an entry for
        every request that has asked for it."""
        cached, joined = await self._flights.join(item.key, lambda: self._encode(item))
        return await self._encode(item) if joined else cached

    def forget(self, items: Sequence[MMItem], plan: Plan) -> None:
        """Their planned consumer cannot get these from the encoders: bytes are sent again. An
        encoder that has not answered meanwhile is passed over until it is probed again; requests
        that wait for it go on waiting."""
        for item in items:
            key = _key(item, plan)
            self._known.pop(key, None)
            flight = self._flights.forget(key)
            if flight is not None and flight.worker is not None:
                flight.worker.suspect = True

    def endpoints(self, items: Sequence[MMItem], plan: Plan) -> dict[str, dict[str, Any]]:
        """Where each item's embeddings can be asked for while they are being made, as far as its
        encoder says so."""
        places = {
            item.mm_hash: self._first(item, plan) for item in items if item.mm_hash not in plan.held
        }
        return {name: i.ec_endpoint for name, i in places.items() if i and i.ec_endpoint}

    def _first(self, item: MMItem, plan: Plan) -> Instance | None:
        """The encoder to be asked first: that of a flight under way, the planned one, or the one
        that has had the item, which it still hands out while it drains."""
        key, place = _key(item, plan), plan.encoders.get(item.mm_hash)
        flight, fleet = self._flights.get(key), self.dispatch.fleet
        if flight is not None and flight.worker is not None:
            return flight.worker
        known = self._known.get(key)
        if place is None and known is not None:
            place = next((i for i in fleet.encode if i.url == known), None)
        if place is not None and place.serves(time.monotonic()) and not place.suspect:
            return place
        try:
            return fleet.by_content(item.mm_hash, (), plan.model, plan.reader)
        except NoWorker:
            return None

    async def _encode(self, item: _Item) -> bool:
        """At the item's encoder; if that fails, at the one that is next for it. Whether no run of
        the vision model was needed."""
        tries = item.tries
        tries.deadline = time.monotonic() + self.patience_s

        def choose() -> Instance:
            encoder = self._next(item)
            flight = self._flights.get(item.key)
            if flight is not None:
                flight.worker = encoder
            return encoder

        async def work(encoder: Instance) -> bool:
            try:
                return await self._encode_at(encoder, item)
            # The encode call's deadline has passed, not a request's: the encoder is charged, also
            # where it says so itself.
            except DeadlineExceeded as late:
                raise CallFailed(late.message, "stalled", status=504) from None

        try:
            return await self.dispatch.tried(tries, "encode", choose, work, only_elsewhere=True)
        except TriptychError as error:
            if is_spent(tries):
                self.dispatch.shun(item.state, item.plan.at, error)
                pass_blame(item.state, item.plan.at, tries, error)
            raise

    def _next(self, item: _Item) -> Instance:
        first = None if item.tries.avoid else self._first(item.item, item.plan)
        return first or another_encoder(self.dispatch.fleet, item.mm_hash, item.plan, item.tries)

    async def _encode_at(self, encoder: Instance, item: _Item) -> bool:
        send = None if self._known.get(item.key) == encoder.url else item.data
        output = await self._call(encoder, item, send)
        if output.missing:
            output = await self._call(encoder, item, item.data)
        if output.error is not None:
            raise from_worker(output.error)
        if output.params is None:
            raise UpstreamError(f"{encoder.url} neither encoded a picture nor said why")
        self._remember(item.key, encoder.url)
        return output.cached

    async def _call(self, encoder: Instance, item: _Item, data: bytes | None) -> EncodeOutput:
        wanted = encode_item(item.item, data)
        # Each call has a name of its own: the worker may still hold the one without bytes.
        name = f"{item.holder}-{item.mm_hash[:16]}{'' if data is None else '-data'}"
        call = EncodeRequest(name, [wanted], deadline_s=self.timeout_s, holder=item.holder)
        patience = Patience(time.monotonic() + self.timeout_s, worker=encoder)
        headers = traced({"content-type": MSGPACK}, item.state.record)
        url = encoder.url + ENCODE_PATH
        answer = await self.client.post(url, encode_encode(call), headers, patience)

        def invalid(what: str) -> UpstreamError:
            return UpstreamError(f"{encoder.url}: the encode answer is not valid: {what}")

        outputs = decoded(answer, EncodeAnswer, fail=invalid).outputs
        if len(outputs) != 1:
            raise invalid(f"it holds {len(outputs)} outputs for one picture")
        output = outputs[0]
        if output.mm_hash != item.mm_hash:
            raise UpstreamError(f"{encoder.url} answered for another picture")
        return output

    def _remember(self, key: str, url: str) -> None:
        self._known[key] = url
        self._known.move_to_end(key)
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
