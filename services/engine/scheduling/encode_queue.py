"""Pictures waiting to be encoded: prepared in threads, batched across requests, kept by mm_hash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from connectors.base import ECConnector, Entry, Tensors
from protocol.errors import DeadlineExceeded, TriptychError, error_info
from protocol.types import EncodeItem, EncodeOutput, EncodeRequest
from services.engine.scheduling.run_bound import RunBound
from services.engine.scheduling.seams import Clock, Meter, Pictures, Prepared, Vision


@dataclass
class _Waiter:
    request_id: str
    holder: str
    deadline: float | None


@dataclass
class _Job:
    """One picture, however many requests wait for it. There are no `tokens` to be made if it has
    been encoded."""

    tokens: int = 0
    waiters: list[_Waiter] = field(default_factory=list)


class EncodeQueue:
    """Encodes each mm_hash once; later requests for it join or are served from the EC store.

    A run takes what is prepared, oldest first, as far as its bound allows, and waits for nothing.
    While the store has no room for what has been encoded, only what a consumer waits for is: so
    pictures pile up in the queue alone, which its requests' deadlines bound. What the store pushed
    out waits here to be put again, as long as the leases last that it was kept for.

    `step` is all of it. Where a run passes on a clock that is not the model's own, `advance`,
    `begin` and `complete` are its parts.
    """

    def __init__(
        self,
        vision: Vision,
        pictures: Pictures,
        store: ECConnector,
        max_patches: int,
        meter: Meter,
        clock: Clock,
        meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`meanwhile` is entered while the model computes."""
        self._vision = vision
        self._meanwhile = meanwhile
        self._store = store
        self.bound = RunBound(max_patches)
        self._meter = meter
        self._clock = clock
        self._begun = 0.0
        self._preparing = pictures
        self._jobs: dict[str, _Job] = {}
        self._unstored: dict[str, Entry] = {}
        self.encoded = 0
        self.runs = 0
        self.hits = 0
        self.queries = 0
        self.received_bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, mm_hash: object) -> bool:
        """Whether a picture is on its way into the store."""
        return mm_hash in self._jobs or mm_hash in self._unstored

    @property
    def queued_tokens(self) -> int:
        """Embeddings that are still to be made."""
        return sum(job.tokens for name, job in self._jobs.items() if name not in self._unstored)

    def add(self, request: EncodeRequest) -> list[EncodeOutput]:
        """Queue a request's items; returns those that are answered at once."""
        deadline = None
        if request.deadline_s is not None:
            deadline = self._clock() + request.deadline_s
        waiter = _Waiter(request.request_id, request.holder, deadline)
        outputs = [self._add_item(item, waiter) for item in request.items]
        self._prepare()
        return [output for output in outputs if output is not None]

    def _add_item(self, item: EncodeItem, waiter: _Waiter) -> EncodeOutput | None:
        request_id = waiter.request_id
        self.queries += 1
        self.received_bytes += len(item.data or b"")
        job = self._jobs.get(item.mm_hash)
        if job is None:
            params = self._store.find(item.mm_hash, waiter.holder)
            if params is not None:
                self.hits += 1
                return EncodeOutput(request_id, item.mm_hash, params, cached=True)
            if item.mm_hash not in self._unstored and item.data is None:
                return EncodeOutput(request_id, item.mm_hash, missing=True)
            job = self._jobs[item.mm_hash] = self._job(item)
        job.waiters.append(waiter)
        return None

    def _job(self, item: EncodeItem) -> _Job:
        if item.mm_hash in self._unstored:
            self.hits += 1
            return _Job()
        self._preparing.add(item)
        return _Job(item.length)

    def _prepare(self) -> None:
        self._preparing.advance(self._store.wanted if self._unstored else None)

    def abort(self, request_ids: Iterable[str]) -> None:
        """The requests wait no longer; a job nobody waits for is dropped if it has not begun."""
        gone = set(request_ids)
        for mm_hash, job in list(self._jobs.items()):
            job.waiters = [w for w in job.waiters if w.request_id not in gone]
            if not job.waiters:
                self._discard(mm_hash)

    def _discard(self, mm_hash: str) -> None:
        del self._jobs[mm_hash]
        self._preparing.discard(mm_hash)

    def step(self) -> list[EncodeOutput]:
        """Encode one batch of what is prepared; returns every answer that is due."""
        outputs = self.advance()
        batch, failed = self.begin()
        if batch:
            with self._meanwhile():
                results = self._vision.encode(batch)
            failed += self.complete(batch, results)
        self._prepare()
        return outputs + failed

    def advance(self) -> list[EncodeOutput]:
        """What is late, and what finds room in the store by now."""
        return self._expire() + self._store_all()

    def begin(self) -> tuple[list[Prepared], list[EncodeOutput]]:
        """The pictures of the next run, and the answers about those that cannot be used."""
        outputs: list[EncodeOutput] = []
        batch: list[Prepared] = []
        patches = 0
        for mm_hash, prepared in self._runnable():
            if isinstance(prepared, BaseException):
                outputs += self._fail(mm_hash, prepared)
            elif not batch or patches + prepared.patches <= self.bound.room:
                batch.append(prepared)
                patches += prepared.patches
        self._begun = self._clock()
        return batch, outputs

    def _runnable(self) -> list[tuple[str, Prepared | BaseException]]:
        """What can be encoded now, oldest first. While results wait for room in the store, only
        what a consumer is waiting for, as its place will be free again at once."""
        ready = self._preparing.ready()
        if not self._unstored:
            return ready
        return [pair for pair in ready if self._store.wanted(pair[0])]

    @property
    def runnable(self) -> bool:
        return bool(self._runnable())

    @property
    def blocked(self) -> bool:
        """Whether what has been encoded waits for room in the store."""
        return bool(self._unstored)

    def complete(
        self, batch: Sequence[Prepared], results: Sequence[Tensors | TriptychError]
    ) -> list[EncodeOutput]:
        """Account for a run that has ended; the answers that are due."""
        self.runs += 1
        outputs: list[EncodeOutput] = []
        tokens = sum(prepared.item.length for prepared in batch)
        seconds = self._clock() - self._begun
        self._meter.encoded(tokens, seconds)
        self.bound.learn(sum(prepared.patches for prepared in batch), seconds)
        for prepared, result in zip(batch, results, strict=True):
            self._preparing.discard(prepared.item.mm_hash)
            if isinstance(result, TriptychError):
                outputs += self._fail(prepared.item.mm_hash, result)
            else:
                self.encoded += 1
                self._unstored[prepared.item.mm_hash] = Entry(result, ())
        return outputs + self._store_all()

    def _store_all(self) -> list[EncodeOutput]:
        """Store what has been encoded, as far as there is room: what a consumer is waiting for in
        place of what nobody has come for yet, the rest in the order of encoding."""
        outputs: list[EncodeOutput] = []
        wanted = [mm_hash for mm_hash in self._unstored if self._store.wanted(mm_hash)]
        for mm_hash in wanted:
            outputs += self._store_one(mm_hash, wanted=True) or []
        for mm_hash in list(self._unstored):
            stored = self._store_one(mm_hash, wanted=False)
            if stored is None:
                break
            outputs += stored
        self._drop_unneeded()
        return outputs

    def _drop_unneeded(self) -> None:
        """What found no room and is kept for nobody is made again if somebody asks for it."""
        now = self._clock()
        for mm_hash, entry in list(self._unstored.items()):
            if not (mm_hash in self._jobs or entry.held(now) or self._store.wanted(mm_hash)):
                del self._unstored[mm_hash]

    def _store_one(self, mm_hash: str, *, wanted: bool) -> list[EncodeOutput] | None:
        """The answers that are due, None if there is no room."""
        job = self._jobs.get(mm_hash)
        waiters = job.waiters if job is not None else []
        encoded = self._unstored[mm_hash]
        come = [waiter.holder for waiter in waiters]
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
            return self._fail(mm_hash, error)
        finally:
            self._unstored |= left
        if params is None:
            return None
        del self._unstored[mm_hash]
        self._jobs.pop(mm_hash, None)
        return [EncodeOutput(w.request_id, mm_hash, params) for w in waiters]

    @property
    def next_deadline(self) -> float | None:
        """When the next request must have been answered."""
        waiters = (waiter for job in self._jobs.values() for waiter in job.waiters)
        return min((w.deadline for w in waiters if w.deadline is not None), default=None)

    def _fail(self, mm_hash: str, error: BaseException) -> list[EncodeOutput]:
        job = self._jobs.pop(mm_hash, None)
        self._preparing.discard(mm_hash)
        self._unstored.pop(mm_hash, None)
        return [_failed(waiter, mm_hash, error) for waiter in (job.waiters if job else ())]

    def fail_all(self, error: TriptychError) -> list[EncodeOutput]:
        """After a step that raised: nobody waits for anything any more."""
        return [output for mm_hash in list(self._jobs) for output in self._fail(mm_hash, error)]

    def _expire(self) -> list[EncodeOutput]:
        expired: list[EncodeOutput] = []
        now = self._clock()
        for mm_hash, job in list(self._jobs.items()):
            late = [w for w in job.waiters if w.deadline is not None and w.deadline <= now]
            error = DeadlineExceeded(
                "the deadline of the request passed before the picture was encoded"
            )
            expired += [_failed(waiter, mm_hash, error) for waiter in late]
            job.waiters = [w for w in job.waiters if w not in late]
            if not job.waiters:
                self._discard(mm_hash)
        return expired

    def close(self) -> None:
        self._preparing.close()


def _failed(waiter: _Waiter, mm_hash: str, error: BaseException) -> EncodeOutput:
    return EncodeOutput(waiter.request_id, mm_hash, error=error_info(error))
