"""Pictures waiting to be encoded: prepared in threads, batched across requests, kept by mm_hash."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from connectors.base import ECConnector, Tensors
from protocol.errors import DeadlineExceeded, TransferError, TriptychError, error_info
from protocol.types import EncodeItem, EncodeOutput, EncodeRequest
from services.engine.vision import Prepared, VisionModel


@dataclass
class _Waiter:
    request_id: str
    deadline: float | None


@dataclass
class _Job:
    """One picture, however many requests wait for it."""

    prepared: Future[Prepared]
    waiters: list[_Waiter] = field(default_factory=list)


class EncodeQueue:
    """Encodes each mm_hash once; later requests for it join or are served from the EC store.

    A run takes what is prepared, oldest first, up to `max_patches`; it never waits to fill up.
    While the store has no room for what has been encoded, nothing more is: the queue is the only
    place where pictures pile up, and it is bounded by its requests' deadlines.
    """

    def __init__(
        self,
        vision: VisionModel,
        store: ECConnector,
        max_patches: int,
        wake: Callable[[], None],
        threads: int = 2,
    ) -> None:
        """`wake` is called, from another thread, whenever a picture becomes ready to run."""
        self._vision = vision
        self._store = store
        self._max_patches = max_patches
        self._wake = wake
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prepare")
        self._jobs: dict[str, _Job] = {}
        self._unstored: dict[str, Tensors] = {}
        self.encoded = 0
        self.runs = 0
        self.hits = 0
        self.queries = 0
        self.received_bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, request: EncodeRequest) -> list[EncodeOutput]:
        """Queue a request's items; returns those that are answered at once."""
        deadline = None
        if request.deadline_s is not None:
            deadline = time.monotonic() + request.deadline_s
        outputs = (self._add_item(request.request_id, item, deadline) for item in request.items)
        return [output for output in outputs if output is not None]

    def _add_item(
        self, request_id: str, item: EncodeItem, deadline: float | None
    ) -> EncodeOutput | None:
        self.queries += 1
        self.received_bytes += len(item.data or b"")
        job = self._jobs.get(item.mm_hash)
        if job is None:
            params = self._store.find(item.mm_hash)
            if params is not None:
                self.hits += 1
                return EncodeOutput(request_id, item.mm_hash, params, cached=True)
            if item.data is None:
                return EncodeOutput(request_id, item.mm_hash, missing=True)
            job = self._jobs[item.mm_hash] = _Job(self._pool.submit(self._vision.prepare, item))
            job.prepared.add_done_callback(lambda _: self._wake())
        job.waiters.append(_Waiter(request_id, deadline))
        return None

    def abort(self, request_ids: Iterable[str]) -> None:
        """The requests wait no longer; a job nobody waits for is dropped if it has not begun."""
        gone = set(request_ids)
        for mm_hash, job in list(self._jobs.items()):
            job.waiters = [w for w in job.waiters if w.request_id not in gone]
            if not job.waiters:
                self._discard(mm_hash)

    def _discard(self, mm_hash: str) -> None:
        self._jobs.pop(mm_hash).prepared.cancel()
        self._unstored.pop(mm_hash, None)

    def step(self) -> list[EncodeOutput]:
        """Encode one batch of what is prepared; returns every answer that is due."""
        outputs = self._expire() + self._store_all()
        if self._unstored:
            return outputs
        batch: list[Prepared] = []
        patches = 0
        for mm_hash, job in list(self._jobs.items()):
            if not job.prepared.done():
                continue
            prepared = job.prepared.exception() or job.prepared.result()
            if isinstance(prepared, BaseException):
                outputs += self._fail(mm_hash, prepared)
            elif not batch or patches + prepared.patches <= self._max_patches:
                batch.append(prepared)
                patches += prepared.patches
        return outputs + self._run(batch)

    @property
    def runnable(self) -> bool:
        return not self._unstored and any(job.prepared.done() for job in self._jobs.values())

    @property
    def blocked(self) -> bool:
        """Whether what has been encoded waits for room in the store."""
        return bool(self._unstored)

    def _run(self, batch: list[Prepared]) -> list[EncodeOutput]:
        if not batch:
            return []
        self.runs += 1
        outputs: list[EncodeOutput] = []
        for prepared, result in zip(batch, self._vision.encode(batch), strict=True):
            if isinstance(result, TriptychError):
                outputs += self._fail(prepared.item.mm_hash, result)
            else:
                self._unstored[prepared.item.mm_hash] = result
        return outputs + self._store_all()

    def _store_all(self) -> list[EncodeOutput]:
        """Store what has been encoded, in that order, as far as there is room."""
        outputs: list[EncodeOutput] = []
        for mm_hash, tensors in list(self._unstored.items()):
            try:
                params = self._store.put(mm_hash, tensors)
            except TransferError as error:
                outputs += self._fail(mm_hash, error)
                continue
            if params is None:
                break
            self.encoded += 1
            del self._unstored[mm_hash]
            job = self._jobs.pop(mm_hash)
            outputs += [EncodeOutput(w.request_id, mm_hash, params) for w in job.waiters]
        return outputs

    def _fail(self, mm_hash: str, error: BaseException) -> list[EncodeOutput]:
        job = self._jobs.pop(mm_hash)
        self._unstored.pop(mm_hash, None)
        return [_failed(waiter, mm_hash, error) for waiter in job.waiters]

    def _expire(self) -> list[EncodeOutput]:
        expired: list[EncodeOutput] = []
        now = time.monotonic()
        for mm_hash, job in list(self._jobs.items()):
            late = [w for w in job.waiters if w.deadline is not None and w.deadline <= now]
            error = DeadlineExceeded("the picture was not encoded before the request's deadline")
            expired += [_failed(waiter, mm_hash, error) for waiter in late]
            job.waiters = [w for w in job.waiters if w not in late]
            if not job.waiters:
                self._discard(mm_hash)
        return expired

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _failed(waiter: _Waiter, mm_hash: str, error: BaseException) -> EncodeOutput:
    return EncodeOutput(waiter.request_id, mm_hash, error=error_info(error))
