"""The encode queue: each item once, however many requests ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from protocol.errors import DeadlineExceeded, ErrorInfo, InvalidRequest, error_info
from protocol.types import EncodeItem, EncodeOutput, EncodeRequest
from services.mock.embeddings import EmbeddingStore
from services.mock.timing import Noise, Timing

PATCHES_PER_TOKEN = 4
_LATE = "the deadline of the request passed before the item was encoded"


@dataclass
class _Job:
    """One item, however many requests wait for it: (request id, deadline) each."""

    item: EncodeItem
    patches: int
    waiters: list[tuple[str, float | None]]


@dataclass
class EncodeQueue:
    """A run takes what waits, oldest first, up to `max_patches`; it never waits to fill up.
    `handle` makes the `ec_transfer_params` entry of an item that the store holds."""

    store: EmbeddingStore
    timing: Timing
    noise: Noise
    max_patches: int
    handle: Callable[[str, int], dict[str, Any]]
    encoded: int = 0
    runs: int = 0
    hits: int = 0
    queries: int = 0
    received_bytes: int = 0
    end: float | None = None
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _run: list[_Job] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def queued_tokens(self) -> int:
        return sum(job.item.length for job in self._jobs.values())

    @property
    def running(self) -> int:
        return len(self._run)

    def add(self, request: EncodeRequest, now: float) -> list[EncodeOutput]:
        """Queue a request's items; returns those that are answered at once."""
        deadline = None if request.deadline_s is None else now + request.deadline_s
        outputs = [self._add_item(request.request_id, item, deadline) for item in request.items]
        return [output for output in outputs if output is not None]

    def _add_item(
        self, request_id: str, item: EncodeItem, deadline: float | None
    ) -> EncodeOutput | None:
        self.queries += 1
        self.received_bytes += len(item.data or b"")
        job = self._jobs.get(item.mm_hash)
        if job is None:
            rows = self.store.find(item.mm_hash)
            if rows is not None:
                self.hits += 1
                params = self.handle(item.mm_hash, rows)
                return EncodeOutput(request_id, item.mm_hash, params, cached=True)
            if item.data is None:
                return EncodeOutput(request_id, item.mm_hash, missing=True)
            problem = _problem(item)
            if problem is not None:
                return EncodeOutput(request_id, item.mm_hash, error=problem)
            patches = prod(item.grid) if item.grid else item.length * PATCHES_PER_TOKEN
            job = self._jobs[item.mm_hash] = _Job(item, patches, [])
        job.waiters.append((request_id, deadline))
        return None

    def abort(self, request_ids: Iterable[str]) -> None:
        """The requests wait no longer; an item nobody waits for is dropped if it has not begun."""
        gone = set(request_ids)
        for mm_hash, job in list(self._jobs.items()):
            job.waiters = [waiter for waiter in job.waiters if waiter[0] not in gone]
            if not job.waiters and job not in self._run:
                del self._jobs[mm_hash]

    def step(self, now: float) -> list[EncodeOutput]:
        """Answers that are due; then the next run begins if there is work."""
        outputs = self._expire(now)
        if self.end is not None and self.end <= now:
            outputs += [output for job in self._run for output in self._done(job)]
            self._run, self.end = [], None
        if self.end is None and self._jobs:
            self._start(now)
        return outputs

    def _start(self, now: float) -> None:
        patches = tokens = 0
        for job in self._jobs.values():
            if not self._run or patches + job.patches <= self.max_patches:
                self._run.append(job)
                patches += job.patches
                tokens += job.item.length
        self.runs += 1
        self.end = now + self.noise.on(self.timing.encode_s(patches, tokens))

    def _done(self, job: _Job) -> list[EncodeOutput]:
        name, rows = job.item.mm_hash, job.item.length
        del self._jobs[name]
        self.encoded += 1
        if not self.store.put(name, rows):
            error = InvalidRequest(f"media item {name[:16]}: larger than the embedding store")
            return [EncodeOutput(r, name, error=error_info(error)) for r, _ in job.waiters]
        params = self.handle(name, rows)
        return [EncodeOutput(request_id, name, params) for request_id, _ in job.waiters]

    def _expire(self, now: float) -> list[EncodeOutput]:
        outputs: list[EncodeOutput] = []
        for mm_hash, job in list(self._jobs.items()):
            late = [w for w in job.waiters if w[1] is not None and w[1] <= now]
            error = error_info(DeadlineExceeded(_LATE)) if late else None
            outputs += [EncodeOutput(request_id, mm_hash, error=error) for request_id, _ in late]
            job.waiters = [w for w in job.waiters if w not in late]
            if not job.waiters and job not in self._run:
                del self._jobs[mm_hash]
        return outputs

    @property
    def next_time(self) -> float | None:
        """When `step` has something to do."""
        times = [d for job in self._jobs.values() for _, d in job.waiters if d is not None]
        if self.end is not None:
            times.append(self.end)
        return min(times, default=None)


def _problem(item: EncodeItem) -> ErrorInfo | None:
    if item.length < 1 or not item.data:
        return error_info(InvalidRequest(f"media item {item.mm_hash[:16]} is empty", param="items"))
    return None
