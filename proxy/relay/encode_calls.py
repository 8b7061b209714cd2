"""Calls to encoders for relayed requests: each item once however many requests ask for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from protocol.encoder_cache import is_mm_hash
from protocol.openai import CHAT_PATH
from proxy.fleet.worker import Instance
from proxy.gateway import Gateway
from proxy.relay.media import Reference
from proxy.relay.response_validation import encoded
from proxy.request_state import Tries
from proxy.upstream.answer import AnswerLimits, Body

Params = dict[str, Any]
"""`ec_transfer_params` of an encoder's answer."""


@dataclass(frozen=True)
class EncodeCall:
    """What all tries of an item's encode call share.

    `key`: of its content, and of what else must be the same for requests to share the call.
    `fields`: header lines.
    `model`: as the client names it.
    `reader`: the EC compatibility of the worker that is to read the item, as far as that is known.
    `place`: the encoder that a master has named.
    `tries`: those that this call begins, none where it shares another one's.
    """

    key: bytes
    fields: bytes
    model: str
    reader: str
    place: Instance | None = None
    tries: Tries = field(default_factory=lambda: Tries(deadline=math.inf))


class EncodeCalls:
    """Items go to the encoder that a master names, or to the one that their content points at, so
    that a repeated picture meets its cache, unless that one is much busier than the others. The
    gateway has the calls under way, which all of its routes join."""

    def __init__(self, gateway: Gateway) -> None:
        config = gateway.config
        self._dispatch = gateway.dispatch
        self._pools = gateway.pools
        self._flights = gateway.encoding
        self._patience_s = config.encode_patience
        timeout_s = config.encode_timeout
        self._limits = AnswerLimits(timeout_s, timeout_s, config.max_answer_bytes)

    async def shared(self, call: EncodeCall, body: Body) -> tuple[Params, str]:
        """What an encoder says of an item, and its URL; with all who ask for it at a time."""
        found, _ = await self._flights.join(call.key, lambda: self.alone(call, lambda: body))
        return found

    async def alone(self, call: EncodeCall, body: Callable[[], Body]) -> tuple[Params, str]:
        """As `shared`, for one request. `body` makes that of each try."""
        tries = call.tries
        tries.deadline = time.monotonic() + self._patience_s
        tries.request_id = f"item {call.key.hex()[:16]}"

        async def work(encoder: Instance) -> tuple[Params, str]:
            pool = self._pools.of(encoder)
            async with pool.room:
                exchange, answer = await pool.ask(CHAT_PATH, call.fields, body(), self._limits)
                exchange.abort()
            return encoded(pool.url, answer), encoder.url

        def choose() -> Instance:
            place = call.place
            if place is not None and not tries.avoid and place.serves(time.monotonic()):
                return place
            fleet = self._dispatch.fleet
            return fleet.by_content(call.key.hex(), tries.avoid, call.model, call.reader)

        return await self._dispatch.tried(tries, "encode", choose, work)


def reference_of(params: Params, modality: str) -> Reference | None:
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
