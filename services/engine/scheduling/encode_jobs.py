"""Pictures that are to be encoded, the requests that wait for each, which of them come again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.errors import InvalidRequest
from protocol.types import EncodeItem


@dataclass
class Waiter:
    """A request of an encoder, for the generate request `holder`; `deadline` of the clock."""

    request_id: str
    holder: str
    deadline: float | None


@dataclass
class Job:
    """One picture, however many requests wait for it. There are no `tokens` to be made if it has
    been encoded."""

    item: EncodeItem | None = None  # that is to be encoded
    tokens: int = 0
    arrived: float = 0.0  # when its first request came, by the engine's clock
    waiters: list[Waiter] = field(default_factory=list)


class EncodeJobs:
    """By mm_hash, in the order of their coming. A job that no request waits for is dropped.

    `answered` has who got an answer about which picture in the step under way.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self.answered: list[tuple[str, Waiter]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, mm_hash: object) -> bool:
        return mm_hash in self._jobs

    def names(self) -> list[str]:
        return list(self._jobs)

    def mismatch(self, item: EncodeItem) -> InvalidRequest | None:
        """Why a request cannot wait for the job that has the item's name: one of them does not name
        its picture by content, and would get the embeddings of another one."""
        job = self._jobs.get(item.mm_hash)
        first = item if job is None or job.item is None else job.item
        for name in ("length", "grid"):
            given, wanted = getattr(item, name), getattr(first, name)
            if given != wanted:
                text = f"{name}: {given}, but {wanted} in another request for {item.mm_hash}"
                return InvalidRequest(text, param="items")
        return None

    def wait(self, mm_hash: str, waiter: Waiter) -> bool:
        """One more waits for a job; False if there is none."""
        job = self._jobs.get(mm_hash)
        if job is not None:
            job.waiters.append(waiter)
        return job is not None

    def awaited_by(self, request_id: str) -> list[str]:
        """The pictures that a request waits for."""
        jobs = self._jobs.items()
        return [name for name, job in jobs if any(w.request_id == request_id for w in job.waiters)]

    def add(self, mm_hash: str, job: Job) -> None:
        self._jobs[mm_hash] = job

    def arrived(self, mm_hash: str) -> float | None:
        """When it came, None if no request waits for it any more."""
        job = self._jobs.get(mm_hash)
        return job.arrived if job is not None else None

    def waiters(self, mm_hash: str) -> list[Waiter]:
        job = self._jobs.get(mm_hash)
        return job.waiters if job is not None else []

    def end(self, mm_hash: str) -> list[Waiter]:
        """The picture is made, or never will be; who waited for it."""
        job = self._jobs.pop(mm_hash, None)
        waiters = job.waiters if job is not None else []
        self.answered += [(mm_hash, waiter) for waiter in waiters]
        return waiters

    def leave(self, request_ids: Collection[str]) -> list[str]:
        """The requests wait no longer; the jobs that were dropped."""
        for job in self._jobs.values():
            job.waiters = [w for w in job.waiters if w.request_id not in request_ids]
        return self._drop()

    def expire(self, now: float) -> tuple[list[tuple[str, Waiter]], list[str]]:
        """Who has waited for which picture beyond the deadline, and the jobs that were dropped."""
        late: list[tuple[str, Waiter]] = []
        for mm_hash, job in self._jobs.items():
            gone = [w for w in job.waiters if w.deadline is not None and w.deadline <= now]
            late += [(mm_hash, waiter) for waiter in gone]
            job.waiters = [w for w in job.waiters if w not in gone]
        self.answered += late
        return late, self._drop()

    def _drop(self) -> list[str]:
        dropped = [mm_hash for mm_hash, job in self._jobs.items() if not job.waiters]
        for mm_hash in dropped:
            del self._jobs[mm_hash]
        return dropped

    def tokens(self, made: Collection[str]) -> int:
        """Embeddings still to be made, but for those of pictures that are `made`."""
        return sum(job.tokens for name, job in self._jobs.items() if name not in made)

    @property
    def next_deadline(self) -> float | None:
        """When the next request must have been answered."""
        waiters = (waiter for job in self._jobs.values() for waiter in job.waiters)
        return min((w.deadline for w in waiters if w.deadline is not None), default=None)


class SeenBefore:
    """`count`: how often a name was added that is among the last `most` added."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, None] = {}  # the one added last is the last
        self.count = 0

    def add(self, name: str) -> None:
        if name in self._names:
            self.count += 1
            del self._names[name]
        elif len(self._names) >= self._most:
            del self._names[next(iter(self._names))]
        self._names[name] = None
