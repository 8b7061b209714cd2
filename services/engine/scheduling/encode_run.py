"""The run of the vision model that is under way, at once or in slices, and what it has made until
the store has room for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from connectors.base import ECConnector, Entry, Tensors
from protocol.errors import TriptychError
from protocol.types import EncodeOutput
from services.engine.scheduling.encode_jobs import EncodeJobs
from services.engine.scheduling.seams import Clock, Prepared, Slices, Vision

Results: TypeAlias = "Sequence[Tensors | TriptychError]"


@dataclass
class EncodeRun:
    """`meanwhile` is entered while the model computes."""

    vision: Vision  # the model
    slices: Slices | None  # how the run is cut, None for in one go
    clock: Clock  # seconds
    meanwhile: Callable[[], AbstractContextManager[None]]
    batch: list[Prepared] = field(default_factory=list)  # items that the run encodes
    seconds: float = 0.0  # that the run has taken so far, without what came between its slices

    def begin(self, batch: list[Prepared]) -> None:
        self.batch = batch
        self.seconds = 0.0

    def go_on(self, most_s: float) -> Results | None:
        """Compute, in slices no longer than about `most_s`; None while there is more to do."""
        begun = self.clock()
        with self.meanwhile():
            if self.slices is None:
                results: Results | None = self.vision.encode(self.batch)
            else:
                results = self.slices.run(self.batch, most_s)
        self.seconds += self.clock() - begun
        return results

    def end(self) -> list[Prepared]:
        """The batch of a run that has ended or is left."""
        batch, self.batch = self.batch, []
        if self.slices is not None:
            self.slices.abandon()
        return batch

    def close(self) -> None:
        if self.slices is not None:
            self.slices.close()


class Unstored:
    """Pictures by mm_hash that have been encoded and found no room in the store yet, or that it has
    pushed out while they were kept for a request."""

    def __init__(self, store: ECConnector, jobs: EncodeJobs) -> None:
        self._store = store
        self._jobs = jobs
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, mm_hash: object) -> bool:
        return mm_hash in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def add(self, mm_hash: str, tensors: Tensors) -> None:
        self._entries[mm_hash] = Entry(tensors, ())

    def drop(self, mm_hash: str) -> None:
        self._entries.pop(mm_hash, None)

    def store_all(
        self, fail: Callable[[str, BaseException], list[EncodeOutput]], now: float
    ) -> list[EncodeOutput]:
        """Store as far as there is room: what a consumer is waiting for in place of what no
        consumer has asked for yet, the rest in the order of encoding. Returns the answers that are
        due; `fail` makes those about a picture that can never be stored."""
        outputs: list[EncodeOutput] = []
        wanted = [mm_hash for mm_hash in self._entries if self._store.wanted(mm_hash)]
        for mm_hash in wanted:
            outputs += self._store_one(mm_hash, fail, wanted=True) or []
        for mm_hash in list(self._entries):
            stored = self._store_one(mm_hash, fail, wanted=False)
            # Smaller ones behind it must not take the room that this one waits for.
            if stored is None:
                break
            outputs += stored
        self._drop_unneeded(now)
        return outputs

    def _drop_unneeded(self, now: float) -> None:
        """What found no room and no request needs is made again once one asks for it."""
        for mm_hash, entry in list(self._entries.items()):
            if not (mm_hash in self._jobs or entry.held(now) or self._store.wanted(mm_hash)):
                del self._entries[mm_hash]

    def _store_one(
        self,
        mm_hash: str,
        fail: Callable[[str, BaseException], list[EncodeOutput]],
        *,
        wanted: bool,
    ) -> list[EncodeOutput] | None:
        """The answers that are due, None if there is no room."""
        waiters = self._jobs.waiters(mm_hash)
        encoded = self._entries[mm_hash]
        come = [waiter.holder for waiter in waiters]
        # A request that asks again begins a new lease; of the others the old one goes on.
        earlier = [holder for holder in encoded.holders if holder not in come]
        deadlines = {name: encoded.deadlines[name] for name in earlier if name in encoded.deadlines}
        entry = Entry(encoded.tensors, (*earlier, *come), deadlines)
        left: dict[str, Entry] = {}
        try:
            if wanted:
                params = self._store.swap(mm_hash, entry, left)
            else:
                params = self._store.offer(mm_hash, entry)
        except TriptychError as error:
            return fail(mm_hash, error)
        finally:
            self._entries |= left  # pushed out also where this one was not stored
        if params is None:
            return None
        del self._entries[mm_hash]
        # At once: a later swap of this pass may push it out again, and its requests are answered.
        self._jobs.end(mm_hash)
        return [EncodeOutput(w.request_id, mm_hash, params) for w in waiters]
