"""Responses that clients may refer to later, in a bounded store of this process."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

Json = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """`items`: input and output of this response and of all before it, without instructions."""

    response: bytes  # the answer, as JSON
    input: bytes  # the input items, as a JSON list
    items: bytes  # as a JSON list
    tenant: str  # whose it is

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.input) + len(self.items)


class ResponseStore:
    """The least recently used responses go when `max_bytes` are exceeded. What one client stored
    is not there for another."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = OrderedDict[str, Stored]()
        self._num_bytes = 0

    @property
    def keeps(self) -> bool:
        """Whether there is room for any response."""
        return self._max_bytes > 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, response: Json, given: list[Json], before: list[Json], tenant: str) -> None:
        """Keep a response, unless it is larger than the whole store."""
        encode = msgspec.json.encode
        # Copied, not referred to: the response before may be evicted or deleted sooner.
        items = [*before, *given, *response["output"]]
        stored = Stored(encode(response), encode(given), encode(items), tenant)
        if stored.num_bytes > self._max_bytes:
            return
        self._held[response["id"]] = stored
        self._num_bytes += stored.num_bytes
        while self._num_bytes > self._max_bytes:
            _, gone = self._held.popitem(last=False)
            self._num_bytes -= gone.num_bytes

    def get(self, response_id: str, tenant: str) -> Stored | None:
        stored = self._held.get(response_id)
        # The same answer for both: an id of another client must not be told from none.
        if stored is None or stored.tenant != tenant:
            return None
        self._held.move_to_end(response_id)
        return stored

    def delete(self, response_id: str, tenant: str) -> bool:
        """Whether it was there."""
        stored = self.get(response_id, tenant)
        if stored is None:
            return False
        del self._held[response_id]
        self._num_bytes -= stored.num_bytes
        return True
