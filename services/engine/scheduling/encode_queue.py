"""Pictures waiting to be encoded: prepared in threads, batched across requests, kept by mm_hash."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from connectors.base import ECConnector
from protocol.errors import DeadlineExceeded, TriptychError, error_info
from protocol.histogram import SECONDS, Histogram
from protocol.types import EncodeItem, EncodeOutput, EncodeRequest
from services.engine.scheduling.chunks import StepSizes
from services.engine.scheduling.decode_delay import RunBound
from services.engine.scheduling.encode_jobs import EncodeJobs, Job, SeenBefore, Waiter
from services.engine.scheduling.encode_run import EncodeRun, Results, Unstored
from services.engine.scheduling.request_times import StageTimes
from services.engine.scheduling.seams import Clock, Meter, Pictures, Prepared, Slices, Vision

_REMEMBERED = 16384  # names of pictures: some 2 MB


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
        slices: Slices | None = None,
        sizes: StepSizes | None = None,
    ) -> None:
        """`meanwhile` is entered while the model computes. With `slices` a run may take several
        steps. `sizes` are told what a step does."""
        self._run = EncodeRun(vision, slices, clock, meanwhile)
        self._store = store
        self.bound = RunBound(max_patches)
        self._meter = meter
        self._sizes = sizes
        self._clock = clock
        self._begun = 0.0
        self._pictures = pictures
        self._jobs = EncodeJobs()
        self._unstored = Unstored(store, self._jobs)
        self.encoded = 0
        self.runs = 0
        self.hits = 0
        self.queries = 0
        self.received_bytes = 0
        self.encoded_again = SeenBefore(_REMEMBERED)
        self.queue_times, self.run_times = Histogram.of(SECONDS), Histogram.of(SECONDS)
        self.stages: StageTimes[str] = StageTimes(clock, self._stages_of)

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, mm_hash: object) -> bool:
        """Whether a picture is on its way into the store."""
        return mm_hash in self._jobs or mm_hash in self._unstored

    @property
    def queued_tokens(self) -> int:
        """Embeddings that are still to be made."""
        return self._jobs.tokens(self._unstored)

    def add(self, request: EncodeRequest) -> list[EncodeOutput]:
        """Queue a request's items; returns those that are answered at once."""
        deadline = None
        if request.deadline_s is not None:
            deadline = self._clock() + request.deadline_s
        waiter = Waiter(request.request_id, request.holder, deadline)
        outputs = [self._add_item(item, waiter) for item in request.items]
        self._prepare()
        return [output for output in outputs if output is not None]

    def trace(self, request_id: str) -> None:
        """Note when the stages of the pictures that a request waits for begin and end."""
        for mm_hash in self._jobs.awaited_by(request_id):
            self.stages.watch(request_id, mm_hash)

    def _stages_of(self, mm_hash: str) -> list[str] | None:
        if mm_hash not in self._jobs:
            return None
        if any(prepared.item.mm_hash == mm_hash for prepared in self._run.batch):
            return ["encode"]
        return ["wait for room"] if mm_hash in self._unstored else ["queue"]

    def _add_item(self, item: EncodeItem, waiter: Waiter) -> EncodeOutput | None:
        self.queries += 1
        self.received_bytes += len(item.data or b"")
        if (error := self._jobs.mismatch(item)) is not None:
            return _failed(waiter, item.mm_hash, error)
        if self._jobs.wait(item.mm_hash, waiter):
            return None
        params = self._store.find(item.mm_hash, waiter.holder)
        if params is not None:
            self.hits += 1
            return EncodeOutput(waiter.request_id, item.mm_hash, params, cached=True)
        if item.mm_hash not in self._unstored and item.data is None:
            return EncodeOutput(waiter.request_id, item.mm_hash, missing=True)
        job = self._job(item)
        job.waiters.append(waiter)
        self._jobs.add(item.mm_hash, job)
        return None

    def _job(self, item: EncodeItem) -> Job:
        if item.mm_hash in self._unstored:
            self.hits += 1
            return Job()
        self._pictures.add(item)
        return Job(item, item.length, self._clock())

    def _prepare(self) -> None:
        self._pictures.advance(self._store.wanted if self._unstored else None)

    def abort(self, request_ids: Iterable[str]) -> None:
        """The requests wait no longer; a job without any is dropped if it has not begun."""
        for mm_hash in self._jobs.leave(set(request_ids)):
            self._pictures.discard(mm_hash)

    def step(self, most_s: float = math.inf) -> list[EncodeOutput]:
        """Encode one batch of what is prepared, or, in slices, as much of it as `most_s` allows;
        returns every answer that is due."""
        outputs = self.advance()
        if not self._run.batch:
            batch, failed = self.begin()
            self._run.begin(batch)
            self.stages.look()
            outputs += failed
        if self._sizes is not None:
            self._sizes.does({"patches": sum(prepared.patches for prepared in self._run.batch)})
        if self._run.batch and (results := self._run.go_on(most_s)) is not None:
            outputs += self.complete(self._run.end(), results, self._run.seconds)
        self.stages.look()
        self._prepare()
        return outputs

    def advance(self) -> list[EncodeOutput]:
        """What is late, and what finds room in the store by now."""
        self._jobs.answered.clear()
        return self._expire() + self._store_all()

    def begin(self) -> tuple[list[Prepared], list[EncodeOutput]]:
        """The pictures of the next run, and the answers about those that cannot be used."""
        outputs: list[EncodeOutput] = []
        batch: list[Prepared] = []
        patches = 0
        for mm_hash, prepared in self._runnable():
            if isinstance(prepared, BaseException):
                outputs += self._fail(mm_hash, prepared)
            # What is too large for the rest of this run comes among the first in the next.
            elif not batch or patches + prepared.patches <= self.bound.room:
                batch.append(prepared)
                patches += prepared.patches
        self._begun = self._clock()
        for prepared in batch:
            if (arrived := self._jobs.arrived(prepared.item.mm_hash)) is not None:
                self.queue_times.observe(self._begun - arrived)
        return batch, outputs

    def _runnable(self) -> list[tuple[str, Prepared | BaseException]]:
        """What can be encoded now, oldest first. While results wait for room in the store, only
        what a consumer is waiting for, as its place will be free again at once."""
        ready = self._pictures.ready()
        if not self._unstored:
            return ready
        return [pair for pair in ready if self._store.wanted(pair[0])]

    @property
    def runnable(self) -> bool:
        return bool(self._run.batch) or bool(self._runnable())

    @property
    def blocked(self) -> bool:
        """Whether what has been encoded waits for room in the store."""
        return bool(self._unstored)

    def complete(
        self, batch: Sequence[Prepared], results: Results, seconds: float | None = None
    ) -> list[EncodeOutput]:
        """Account for a run that has ended; the answers that are due. `seconds` is what it took,
        without them all the time since `begin`."""
        self.runs += 1
        outputs: list[EncodeOutput] = []
        tokens = sum(prepared.item.length for prepared in batch)
        seconds = self._clock() - self._begun if seconds is None else seconds
        self._meter.encoded(tokens, seconds)
        self.run_times.observe(seconds)
        self.bound.learn(sum(prepared.patches for prepared in batch), seconds)
        for prepared, result in zip(batch, results, strict=True):
            self._pictures.discard(prepared.item.mm_hash)
            if isinstance(result, TriptychError):
                outputs += self._fail(prepared.item.mm_hash, result)
            else:
                self.encoded += 1
                self.encoded_again.add(prepared.item.mm_hash)
                self._unstored.add(prepared.item.mm_hash, result)
        return outputs + self._store_all()

    def _store_all(self) -> list[EncodeOutput]:
        """Put what has been encoded into the store, as far as there is room."""
        return self._unstored.store_all(self._fail, self._clock())

    @property
    def next_deadline(self) -> float | None:
        """When the next request must have been answered."""
        return self._jobs.next_deadline

    def _fail(self, mm_hash: str, error: BaseException) -> list[EncodeOutput]:
        waiters = self._jobs.end(mm_hash)
        self._pictures.discard(mm_hash)
        self._unstored.drop(mm_hash)
        return [_failed(waiter, mm_hash, error) for waiter in waiters]

    def fail_all(self, error: TriptychError) -> list[EncodeOutput]:
        """After a step that raised: those that wait fail, and those whose answers it has lost."""
        self._run.end()
        for mm_hash in self._jobs.names():
            self._fail(mm_hash, error)
        return [_failed(waiter, mm_hash, error) for mm_hash, waiter in self._jobs.answered]

    def _expire(self) -> list[EncodeOutput]:
        late, dropped = self._jobs.expire(self._clock())
        for mm_hash in dropped:
            self._pictures.discard(mm_hash)
        error = DeadlineExceeded("the request's deadline passed before the picture was encoded")
        return [_failed(waiter, mm_hash, error) for mm_hash, waiter in late]

    def close(self) -> None:
        self._run.close()
        self._pictures.close()


def _failed(waiter: Waiter, mm_hash: str, error: BaseException) -> EncodeOutput:
    return EncodeOutput(waiter.request_id, mm_hash, error=error_info(error))
