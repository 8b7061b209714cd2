"""The engine's own copy of the embeddings its requests need."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from connectors.base import Changed, ECConnector, ECLoad, Tensors, no_listener
from protocol.errors import EmbeddingLost, InvalidRequest, TransferError
from protocol.types import MMItem
from services.engine.scheduling.request import Order, Request, RequestKey
from services.engine.scheduling.seams import MISMATCH, EmbeddingForm, length_mismatch


@dataclass
class _Entry:
    """`size` in bytes is reserved before the tensors are here. `owners` need it."""

    length: int
    size: int
    owners: dict[RequestKey, Order] = field(default_factory=dict)
    tensors: Tensors | None = None


class EmbeddingCache:
    """Embeddings by mm_hash in at most `capacity` bytes.

    Room is reserved before an embedding is asked for, for the oldest request first, its items in
    prompt order; what no request needs makes room (LRU), then what only younger ones need. So the
    oldest request always gets what it needs next, however little room there is. `changed` hears of
    what is here and what no more, as of `ECConnector`.
    """

    def __init__(
        self,
        connector: ECConnector,
        capacity: int,
        form: EmbeddingForm,
        changed: Changed = no_listener,
    ) -> None:
        self._connector = connector
        self._capacity = capacity
        self._form = form
        self._changed = changed
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._loading: dict[str, ECLoad] = {}
        self._requests: dict[RequestKey, Request] = {}
        self._unmet: set[RequestKey] = set()
        self._incomplete: set[RequestKey] = set()
        self._completed: list[Request] = []
        self.size = 0
        self.hits, self.queries = 0, 0
        self.stolen, self.lost = 0, 0

    @property
    def capacity(self) -> int:
        """Bytes."""
        return self._capacity

    def validate(self, items: list[MMItem]) -> None:
        """`InvalidRequest` if one of them can never be held."""
        for item in items:
            self._connector.check_name(item.mm_hash)
            size = item.length * self._form.token_bytes
            if size > self._capacity:
                raise InvalidRequest(
                    f"features: a media item of {item.length} tokens needs {size} bytes, more than "
                    f"--embedding-cache-bytes {self._capacity}",
                    param="features",
                )

    def pin(self, request: Request) -> None:
        """The request needs the embeddings of every item that is not computed yet; `poll` loads
        them."""
        if request.mm_items:
            self._requests[request.key] = request
        for item in request.items_left:
            entry = self._entries.get(item.mm_hash)
            if entry is None or request.key not in entry.owners:
                self._unmet.add(request.key)
            if entry is None or entry.tensors is None:
                self._incomplete.add(request.key)

    def release(self, request: Request) -> None:
        """The request does not need the items that it has computed."""
        needed = {item.mm_hash for item in request.items_left}
        for item in request.mm_items:
            entry = self._entries.get(item.mm_hash)
            if entry is not None and item.mm_hash not in needed:
                entry.owners.pop(request.key, None)

    def unpin(self, key: RequestKey) -> None:
        """The choice `key` needs nothing any more, here or in a producer's store."""
        self._unmet.discard(key)
        self._incomplete.discard(key)
        if (request := self._requests.pop(key, None)) is None:
            return
        # The producer knows a request, not its choices: the last one lets go.
        last = request.sampling.n == 1 or all(name != key[0] for name, _ in self._requests)
        for item in request.mm_items:
            if last:
                self._connector.release(item.mm_hash, _params(request, item), key[0])
            entry = self._entries.get(item.mm_hash)
            if entry is not None:
                entry.owners.pop(key, None)
                # No request waits for this load: its bytes would be moved for nothing.
                if not entry.owners and entry.tensors is None:
                    self._drop(item.mm_hash)

    def ready(self, item: MMItem) -> bool:
        """Whether its embeddings are here, as many as it has placeholders."""
        entry = self._entries.get(item.mm_hash)
        return entry is not None and entry.tensors is not None and entry.length == item.length

    def tensors(self, mm_hash: str) -> Tensors:
        tensors = self._entries[mm_hash].tensors
        assert tensors is not None
        return tensors

    def poll(self) -> list[tuple[RequestKey, TransferError]]:
        """Reserve, begin and advance loads; returns the requests whose embedding failed, with the
        cause."""
        failed = list(self._begin())
        for mm_hash, load in list(self._loading.items()):
            try:
                tensors = load.poll()
                if tensors is not None:
                    self._take(mm_hash, tensors)
            except TransferError as error:
                self._connector.meter.failed(error.code)
                # A proxy has what is lost encoded again; of a wrong length it would come again.
                gone = error.code != MISMATCH
                self.lost += gone
                cause = EmbeddingLost(error.message) if gone else error
                failed += [(owner, cause) for owner in self._entries[mm_hash].owners]
                self._drop(mm_hash)
        return failed

    def _begin(self) -> Iterator[tuple[RequestKey, TransferError]]:
        """Reserve room; the requests that expect another number of embeddings than an item has."""
        unmet = [self._requests[key] for key in self._unmet]
        for request in sorted(unmet, key=lambda r: r.order):
            for item in request.items_left:
                entry = self._entries.get(item.mm_hash)
                if entry is not None and entry.length != item.length:
                    # Which of two lengths is right is known once the embeddings are here.
                    if entry.tensors is not None:
                        yield request.key, length_mismatch(item.mm_hash, entry.length, item.length)
                    break
                # Younger requests must not take room in pieces too small for this one.
                if not self._own(item, request):
                    return
            else:
                self._unmet.discard(request.key)

    def _own(self, item: MMItem, request: Request) -> bool:
        """Make a request an owner of an item, which is asked for if it is not here; False if there
        is no room."""
        entry = self._entries.get(item.mm_hash)
        if entry is not None and request.key in entry.owners:
            return True
        if entry is not None:
            self.hits += 1
        elif not self._make_room(item.length * self._form.token_bytes, request.order):
            return False
        else:
            load = self._connector.fetch(item.mm_hash, _params(request, item))
            self._loading[item.mm_hash] = load
            entry = _Entry(item.length, item.length * self._form.token_bytes)
            self._entries[item.mm_hash] = entry
            self.size += entry.size
        self.queries += 1
        entry.owners[request.key] = request.order
        self._entries.move_to_end(item.mm_hash)
        if entry.tensors is not None:
            self._note_arrival(request.key)
        return True

    def _make_room(self, size: int, order: Order) -> bool:
        while self.size + size > self._capacity:
            victim = next(self._evictable(), None) or self._youngest(order)
            if victim is None:
                return False
            # They are younger, and reserve again once there is room.
            self._unmet.update(self._entries[victim].owners)
            self.stolen += bool(self._entries[victim].owners)
            self._drop(victim)
        return True

    def _evictable(self) -> Iterator[str]:
        return (name for name, entry in self._entries.items() if not entry.owners)

    def _youngest(self, order: Order) -> str | None:
        """The entry of the youngest requests, if they are all younger than `order`."""
        oldest = {name: min(entry.owners.values()) for name, entry in self._entries.items()}
        victim = max(oldest, key=lambda name: oldest[name], default=None)
        return victim if victim is not None and oldest[victim] > order else None

    def _take(self, mm_hash: str, tensors: Tensors) -> None:
        entry = self._entries[mm_hash]
        entry.tensors = self._form.taken(mm_hash, tensors, entry.length)
        del self._loading[mm_hash]
        self._changed(mm_hash, entry.length, entry.size)
        for key in entry.owners:
            self._note_arrival(key)

    def _note_arrival(self, key: RequestKey) -> None:
        """An embedding that the request `key` needs is here: it may have been the last."""
        if key not in self._incomplete:
            return
        request = self._requests[key]
        if all(self.ready(item) for item in request.items_left):
            self._incomplete.discard(key)
            self._completed.append(request)

    def take_completed(self) -> list[Request]:
        """Requests that lacked an embedding and have them all since the last time."""
        completed, self._completed = self._completed, []
        return completed

    def _drop(self, mm_hash: str) -> None:
        entry = self._entries.pop(mm_hash)
        load = self._loading.pop(mm_hash, None)
        if load is not None:
            load.cancel()
        if entry.tensors is not None:
            self._changed(mm_hash, 0, 0)
        self.size -= entry.size

    def clear(self) -> None:
        """Drop what no request needs."""
        for mm_hash in list(self._evictable()):
            self._drop(mm_hash)

    def check_integrity(self, owners: set[RequestKey]) -> list[str]:
        """`owners` are the requests alive; anything pinned by another one is a leak."""
        problems = [
            f"embedding {mm_hash[:16]} is pinned by finished request {owner[0]}"
            for mm_hash, entry in self._entries.items()
            for owner in set(entry.owners) - owners
        ]
        held = sum(entry.size for entry in self._entries.values())
        if held != self.size:
            problems.append(f"embeddings sum to {held} bytes, books say {self.size}")
        return problems


def _params(request: Request, item: MMItem) -> dict[str, object] | None:
    return (request.source.ec_transfer_params or {}).get(item.mm_hash)
