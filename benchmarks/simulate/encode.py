"""An encoder on virtual time, around the mock workers' encode queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Picture
from benchmarks.simulate.stage import Stage
from protocol.registry import Load
from protocol.types import EncodeItem, EncodeRequest
from services.mock.embeddings import EmbeddingStore
from services.mock.encoding import EncodeQueue

_BYTES = b"x"


class EncodeWorker(Stage):
    def __init__(self, name: str, profile: Profile, clock: Clock, seed: int) -> None:
        super().__init__(name, profile, clock, seed)
        self.store = EmbeddingStore(profile.encoder_bytes, profile.row_bytes)
        self.queue = EncodeQueue(
            self.store, profile.timing, self.noise, profile.max_patches, _no_handle
        )
        self._waiters: dict[str, Callable[[], None]] = {}
        self._asked = 0

    def encode(self, item: Picture, done: Callable[[], None]) -> None:
        """`done` once the picture's embedding is in the store: at once if it is there."""
        self._asked += 1
        name = str(self._asked)
        wanted = EncodeItem(item.mm_hash, "image", item.tokens, data=_BYTES)
        answered = self.queue.add(EncodeRequest(name, [wanted]), self.clock.now)
        if answered:
            done()
            return
        self._waiters[name] = done
        self.count(1)
        self._step()

    def load(self) -> Load:
        return Load(
            queued=len(self.queue) - self.queue.running,
            running=self.queue.running,
            queued_tokens=self.queue.queued_tokens,
            ec_bytes=self.store.size,
            ec_capacity_bytes=self.store.capacity,
            rates=self.rates,
        )

    def _step(self) -> None:
        before = self.queue.end
        outputs = self.queue.step(self.clock.now)
        self._media(self.store.changes)
        end = self.queue.end
        if end is not None and end != before:
            self.busy(self.clock.now, end)
            self.clock.at(end, self._step)
        for output in outputs:
            self.count(-1)
            self._waiters.pop(output.request_id)()


def _no_handle(mm_hash: str, rows: int) -> dict[str, Any]:
    return {}
