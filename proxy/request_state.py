"""What the proxy knows of a request on its way, in either dialect."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from protocol.errors import DeadlineExceeded, TriptychError
from protocol.request_record import RequestRecord
from proxy.fleet.worker import Instance


@dataclass(frozen=True)
class Caller:
    """Whose fair share a request counts against, and what it has to do with others."""

    tenant: str = ""
    session: str = ""


@dataclass(kw_only=True)
class Tries:
    """Attempts at one piece of work: a request, or the encoding of a picture for several requests.

    `deadline`: of `time.monotonic`; nothing is tried after it.
    `request_id`: for the log.
    `avoid`: workers that have failed it, oldest first.
    `blamed`: those of them that are at fault, each with its way of failing, until they are told.
    `attempt`: how many attempts have ended.
    `in_a_row`: those of them that nothing has come of since something did.
    `failures`: as many of these as count.
    `seen`: by way of failing, the worker that failed so first; None once another has too.
    `charges`: by way of failing, what that worker's breaker was charged for it.
    `charged`: which ways of failing which worker was charged with, forgiven or not; all work for
    one request shares it.
    `own_key`: a worker that refuses the caller's key refuses the client's, or asks for one.
    `excused`: the failure that does not count.
    `lost`: whether a worker that had the work has stopped to take requests.
    `waiting_since`: when it was first left without a worker, None if it was not.
    `wanted_model`: as of `Need`; who else could do the work serves it too.
    `also`: a worker that can do it beside those of its role, where these do not.
    `record`: where its stages, workers and attempts are noted.
    """

    deadline: float
    request_id: str = ""
    avoid: list[Instance] = field(default_factory=list)
    blamed: list[tuple[str, Instance]] = field(default_factory=list)
    attempt: int = field(init=False, default=0)
    in_a_row: int = field(init=False, default=0)
    failures: int = field(init=False, default=0)
    seen: dict[str, Instance | None] = field(default_factory=dict)
    charges: dict[str, list[int]] = field(init=False, default_factory=dict)
    charged: set[tuple[str, Instance]] = field(default_factory=set)
    own_key: bool = False
    excused: TriptychError | None = field(init=False, default=None)
    lost: bool = field(init=False, default=False)
    waiting_since: float | None = field(init=False, default=None)
    wanted_model: str | None = None
    also: Instance | None = None
    record: RequestRecord = field(default_factory=RequestRecord)

    @property
    def left_s(self) -> float:
        """Seconds left; `DeadlineExceeded` if there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the request's deadline has passed")
        return left

    def forgive(self, kind: str) -> None:
        """That it fails in this way is its own fault: no worker is charged with it, or was."""
        first = self.seen.get(kind)
        if first is not None:
            first.breaker.forgive(self.charges.pop(kind, ()))
            self.blamed = [one for one in self.blamed if one != (kind, first)]
        self.seen[kind] = None

    def take_blamed(self) -> list[Instance]:
        """The workers at fault since this was last asked."""
        blamed, self.blamed = self.blamed, []
        return [instance for _, instance in blamed]

    def beside(self) -> Tries:
        """For other work that the request needs."""
        return Tries(deadline=self.deadline, charged=self.charged, own_key=self.own_key)

    def charges_first(self, kind: str, instance: Instance) -> bool:
        """Whether a worker has not been charged with this way of failing yet; it is from now on."""
        known = len(self.charged)
        self.charged.add((kind, instance))
        return len(self.charged) > known

    def waited_s(self, now: float) -> float:
        """Seconds since it was first left without a worker, 0 if it was not."""
        return 0.0 if self.waiting_since is None else now - self.waiting_since

    def excuse(self, error: TriptychError) -> None:
        """The failure does not count; from now on it waits for a worker, if it did not before."""
        self.excused = error
        self.waiting_since = self.waiting_since or time.monotonic()

    @property
    def begun(self) -> bool:
        """Whether its client has had any of the answer."""
        return False

    @property
    def failed(self) -> bool:
        """Whether a worker has failed it, or its client has had part of the answer. One that is
        full, or has just come or gone, has not."""
        return self.begun or self.lost or bool(self.charged)

    def progressed(self) -> None:
        """Something came of the attempt under way: failures before it count no more."""
        self.in_a_row = self.failures = 0
        self.lost = False
        self.excused = self.waiting_since = None


@dataclass(kw_only=True)
class RequestState(Tries):
    """A client's request over all its attempts. `priority`: lower is served earlier, 0 is usual."""

    priority: int = 0
    caller: Caller = Caller()
