"""The engine's own copy of the embeddings its requests need."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from connectors.base import EC_TENSOR, ECConnector, ECLoad, Tensors
from protocol.errors import TransferError
from protocol.types import MMItem
from services.engine.request import Request, RequestKey


@dataclass
class _Entry:
    length: int
    owners: set[RequestKey] = field(default_factory=set)
    load: ECLoad | None = None
    tensors: Tensors | None = None
    size: int = 0


class EmbeddingCache:
    """Embeddings by mm_hash: pinned while a request needs them, then LRU in `capacity` bytes."""

    def __init__(self, connector: ECConnector, device: str, capacity: int) -> None:
        self._connector = connector
        self._device = device
        self._capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._size = 0
        self.hits = 0
        self.queries = 0

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._size

    def pin(self, request: Request) -> None:
        """Own, and start to load, the embeddings of every item that is not computed yet."""
        for item in request.items_in(request.num_computed, request.num_prompt):
            entry = self._entry(item, request)
            entry.owners.add(request.key)
            self._entries.move_to_end(item.mm_hash)

    def _entry(self, item: MMItem, request: Request) -> _Entry:
        entry = self._entries.get(item.mm_hash)
        fresh = entry is None or request.key not in entry.owners
        self.queries += fresh
        if entry is not None:
            self.hits += fresh
            return entry
        params = (request.source.ec_transfer_params or {}).get(item.mm_hash)
        entry = _Entry(item.length, load=self._connector.get(item.mm_hash, params))
        self._entries[item.mm_hash] = entry
        return entry

    def unpin(self, key: RequestKey) -> None:
        """The request `key` needs nothing any more."""
        for mm_hash, entry in list(self._entries.items()):
            entry.owners.discard(key)
            if not entry.owners and entry.tensors is None:
                self._drop(mm_hash)
        self._shrink()

    def ready(self, mm_hash: str) -> bool:
        entry = self._entries.get(mm_hash)
        return entry is not None and entry.tensors is not None

    def tensors(self, mm_hash: str) -> Tensors:
        tensors = self._entries[mm_hash].tensors
        assert tensors is not None
        return tensors

    @property
    def loading(self) -> bool:
        return any(entry.load is not None for entry in self._entries.values())

    def poll(self) -> list[tuple[RequestKey, TransferError]]:
        """Advance loads; returns the requests whose embedding failed, with the cause."""
        failed: list[tuple[RequestKey, TransferError]] = []
        for mm_hash, entry in list(self._entries.items()):
            if entry.load is None:
                continue
            try:
                self._advance(mm_hash, entry, entry.load)
            except TransferError as error:
                failed += [(owner, error) for owner in entry.owners]
                self._drop(mm_hash)
        return failed

    def _advance(self, mm_hash: str, entry: _Entry, load: ECLoad) -> None:
        tensors = load.poll()
        if tensors is None:
            return
        rows = tensors[EC_TENSOR].shape[0]
        if rows != entry.length:
            raise TransferError(
                f"media item {mm_hash[:16]}: the encoder made {rows} embeddings, its placeholder "
                f"span has {entry.length} tokens",
                code="embedding_length_mismatch",
            )
        entry.tensors = {name: t.to(self._device) for name, t in tensors.items()}
        entry.size = sum(t.nbytes for t in tensors.values())
        entry.load = None
        self._size += entry.size
        self._shrink()

    def _shrink(self) -> None:
        for mm_hash in self._evictable():
            if self._size <= self._capacity:
                break
            self._drop(mm_hash)

    def _evictable(self) -> Iterable[str]:
        return [
            mm_hash
            for mm_hash, entry in self._entries.items()
            if not entry.owners and entry.tensors is not None
        ]

    def _drop(self, mm_hash: str) -> None:
        entry = self._entries.pop(mm_hash)
        if entry.load is not None:
            entry.load.cancel()
        self._size -= entry.size

    def clear(self) -> None:
        """Drop what no request needs."""
        for mm_hash in self._evictable():
            self._drop(mm_hash)

    def check_integrity(self, owners: set[RequestKey]) -> list[str]:
        """`owners` are the requests alive; anything pinned by another one is a leak."""
        return [
            f"embedding {mm_hash[:16]} is pinned by finished request {owner[0]}"
            for mm_hash, entry in self._entries.items()
            for owner in entry.owners - owners
        ]
