"""Bytes of pictures that an encoder has had, so that it can encode one again without them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from protocol.types import EncodeItem, EncodeOutput


class MediaCache:
    """At most `capacity` bytes by mm_hash, least recently used first out."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._bytes: OrderedDict[str, bytes] = OrderedDict()
        self.size = 0
        self.hits = 0

    def keep(self, items: Iterable[EncodeItem]) -> None:
        """Remember what came with its data."""
        for item in items:
            if item.data is not None and 0 < len(item.data) <= self._capacity:
                self._put(item.mm_hash, item.data)

    def missing(
        self, items: Sequence[EncodeItem], outputs: Sequence[EncodeOutput]
    ) -> list[EncodeItem]:
        """Those of `items` that the engine did not have, with their data, as far as it is here."""
        gone = {output.mm_hash for output in outputs if output.missing}
        found = []
        for item in items:
            data = self._bytes.get(item.mm_hash) if item.mm_hash in gone else None
            if data is not None:
                self._bytes.move_to_end(item.mm_hash)
                found.append(msgspec.structs.replace(item, data=data))
        self.hits += len(found)
        return found

    def clear(self) -> None:
        """Keep nothing of what there was."""
        self._bytes.clear()
        self.size = 0

    def _put(self, name: str, data: bytes) -> None:
        self.size += len(data) - len(self._bytes.pop(name, b""))
        self._bytes[name] = data
        while self.size > self._capacity:
            _, oldest = self._bytes.popitem(last=False)
            self.size -= len(oldest)
