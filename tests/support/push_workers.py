"""Workers that speak vLLM's push mode (ECMooncakeConnector) as `proxy.relay` has to: an encoder
writes an embedding only to a consumer that it can reach, and a consumer computes only with
transfers that have arrived at the very rank that it is asked to use. What breaks the contract is
answered with 400, which is not tried again."""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.relay_workers import WHOLE, Asked, Worker, good, send

RANK = "x-data-parallel-rank"
_HEX = re.compile(r"[0-9a-f]{32}")


@dataclass
class PushNetwork:
    """What encoders have written, by consumer address: transfer id → mm_hash."""

    addresses: list[str]
    ranks: int = 1
    written: dict[str, dict[str, str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    requests: Counter[str] = field(default_factory=Counter)  # by the address they were computed at
    silent: bool = False  # encoders report entries without metadata
    _decoders: int = 0

    def __post_init__(self) -> None:
        self.written = {address: {} for address in self.addresses}

    def worker(self, role: str) -> Worker:
        """For `relaying(kind=…)`: decode workers get their addresses in turn."""
        if role == "encode":
            return _Answering(role, answer=self._encode)
        first = self._decoders * self.ranks
        self._decoders += 1
        own = self.addresses[first : first + self.ranks]
        return _Answering(role, answer=lambda asked: self._decode(asked, own))

    def _encode(self, asked: Asked) -> dict[str, Any]:
        """One transfer id for each item, in the order of the items."""
        params, (message,) = asked.body["ec_transfer_params"], asked.body["messages"]
        parts = [part for part in message["content"] if part["type"] == "image_url"]
        _check(set(params) == {"consumer_zmq", "ec_items"}, f"fields {sorted(params)}")
        _check(params["consumer_zmq"] in self.written, f"consumer {params['consumer_zmq']}")
        _check(len(params["ec_items"]) == len(parts), "one transfer for each item")
        _check(RANK not in asked.headers, "the rank is the consumer's")
        found: dict[str, Any] = {}
        for index, (part, item) in enumerate(zip(parts, params["ec_items"], strict=True)):
            _check(set(item) == {"transfer_id"}, f"item fields {sorted(item)}")
            name = item["transfer_id"]
            _check(bool(_HEX.fullmatch(name)), f"transfer id {name}")
            _check(all(name not in one for one in self.written.values()), "a new transfer id")
            mm_hash = hashlib.sha256(part["image_url"]["url"].encode()).hexdigest()
            self.written[params["consumer_zmq"]][name] = mm_hash
            entry = found.setdefault(
                mm_hash, {"modality": "image", "item_indices": [], "transfer_id": name}
            )
            entry["item_indices"].append(index)
            entry["metadata"] = {} if self.silent else {"image_grid_thw": [1, 4, 4]}
        return {"ec_transfer_params": found}

    def _decode(self, asked: Asked, own: list[str]) -> dict[str, Any]:
        """Each picture's transfer has arrived at this rank, and is used once."""
        content = asked.body["messages"][0]["content"]
        if isinstance(content, str):
            _check(RANK not in asked.headers, "text is for the worker's own balancer")
            return {}
        rank = int(asked.headers.get(RANK, "0"))
        _check((RANK in asked.headers) == (self.ranks > 1), "a rank if there are several")
        arrived, params = self.written[own[rank]], asked.body["ec_transfer_params"]
        self.requests[own[rank]] += 1
        items = params["ec_items"]
        _check(len(items) == len(content), "one transfer for each picture")
        for part, item in zip(content, items, strict=True):
            _check(set(item) == {"mm_hash", "transfer_id"}, f"item fields {sorted(item)}")
            _check(arrived.get(item["transfer_id"]) == item["mm_hash"], "what has arrived here")
            _check(item["transfer_id"] not in self.used, "a transfer is used once")
            self.used.add(item["transfer_id"])
            if self.silent:
                _check(part["type"] == "image_url", "the media itself")
            else:
                _check(part["type"] == "image_embeds", "a reference")
                _check(part["uuid"] == item["mm_hash"], "the picture's own transfer")
                _check(item["mm_hash"] in params, "the encoder's entry")
        return {}


class _Wrong(Exception):
    pass


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise _Wrong(rule)


@dataclass
class _Answering(Worker):
    """Follows its script first, as all scripted workers do."""

    answer: Callable[[Asked], dict[str, Any]] = lambda asked: {}

    async def respond(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        try:
            more = self.answer(asked)
        except (_Wrong, KeyError, TypeError, ValueError) as broken:
            said = {"error": {"message": f"against the contract: {broken!r}", "type": "x"}}
            await send(writer, json.dumps(said).encode(), status=400)
            return
        if self.script:
            await self.script.pop(0)(self, asked, writer)
        elif asked.body.get("stream"):
            await good(self, asked, writer)
        else:
            await send(writer, json.dumps({**WHOLE, **more}).encode())
