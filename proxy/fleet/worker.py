"""One worker as this proxy knows it, with the circuit breaker that spares it while it fails."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from protocol.types import Role

Dialect = Literal["tokens", "openai"]
WorkingRole = Literal["encode", "prefill", "decode", "prefill_decode", "pdfusion"]
_LATE_PROBES = 3  # in a row, then it is given up
_LATE_PROBES_ALONE = 10  # where no other worker could take its work
_QUIET_S = 1.0  # without a call that ended well


@dataclass
class Breaker:
    """Closed until `threshold` failures in a row, then open for `cooldown_s`.

    After that one request at a time is let through: its success closes the breaker, its failure, or
    no news for another `cooldown_s`, keeps it open. Times are of one monotonic clock.
    """

    threshold: int = 5
    cooldown_s: float = 10.0
    failures: int = 0
    open_until: float = 0.0
    _row: int = 0  # the number of the failures in a row that are counted

    @property
    def closed(self) -> bool:
        return self.failures < self.threshold

    def admits(self, now: float) -> bool:
        """Whether a request may be sent."""
        return self.closed or now >= self.open_until

    def wait_s(self, now: float) -> float:
        """Seconds until a request may be sent."""
        return 0.0 if self.closed else max(0.0, self.open_until - now)

    def started(self, now: float) -> None:
        """A request is sent; past the threshold it is a trial, and the only one."""
        # Not `closed`: a property costs a call, and every call to a worker comes here.
        if self.failures >= self.threshold:
            self.open_until = now + self.cooldown_s

    def succeeded(self) -> None:
        if self.failures:
            self.failures, self._row = 0, self._row + 1

    def failed(self, now: float) -> int:
        """Count a failure; what it returns takes this one back, see `forgive`."""
        self.failures += 1
        if not self.closed:
            self.open_until = now + self.cooldown_s
        return self._row

    def forgive(self, charges: Iterable[int]) -> None:
        """Failures, by what `failed` returned, were not the worker's fault; once for each."""
        # A success since then has cleared them already: those that count are of other requests.
        self.failures -= sum(charge == self._row for charge in charges)


def stage_of(role: WorkingRole) -> Role:
    """The stage that a worker serves; one that prefills and decodes is asked to decode."""
    return role if role == "encode" or role == "prefill" else "decode"


@dataclass(eq=False)
class Instance:
    """A worker's address, what it has said of itself, and how it is."""

    url: str  # without a slash at its end
    role: Role  # the stage that it is asked for
    breaker: Breaker = field(default_factory=Breaker)  # open while calls there keep failing
    instance_id: str = ""  # as a master knows it, "" without one
    generation: str = ""  # another one after each restart
    process: str = ""  # what it calls its process; another one has other endpoints
    names_itself: bool = False  # all its answers do so
    up: bool = True  # whether it may be asked
    # it has been silent for so long that what it was asked is given up
    lost: bool = False
    cause: str = "it has not answered a probe yet"  # why it is not up, for the log
    draining: bool = False  # it finishes what it has
    # it has not answered in time: asked only if no other worker is there, until it is probed again
    suspect: bool = False
    known: bool = False  # it has said all of what follows since it came up
    listed: bool = False  # by a flag, so it stays even if a master drops it
    known_to_master: bool = False  # a master says that it is there
    removed: bool = False  # from the fleet; it finishes what it has
    in_flight: int = 0  # calls of this proxy there
    heard: float = 0.0  # when a call there last came to a good end
    late_probes: int = 0  # those it has not answered in time since it last did
    probes: int = 0  # those it has answered since it has said all of itself
    max_running: int = 0  # requests that it computes at once, 0 if unknown
    block_size: int = 0  # tokens of a KV block, 0 if unknown
    model: str = ""  # the name by which it serves the model, "" if unknown
    models: frozenset[str] = frozenset()  # this name, its aliases, LoRA adapters
    adapters: Mapping[str, str] = field(default_factory=dict)  # LoRA adapters → revision or ""
    aliases: frozenset[str] = frozenset()  # the aliases among them, as a master tells
    rendered: str = ""  # first name of the model, of several that the proxy renders for
    revision: str = ""  # name of the weights in content keys
    tokenizer: str = ""  # digest of its vocabulary, "" if unknown
    misfit: bool = False  # its model reads other tokens than this proxy renders
    # where a decode worker asks for KV that this one is still computing, None if it cannot be asked
    kv_endpoint: dict[str, Any] | None = None
    kv_compatibility: str = ""  # what those must share that it hands KV over to, "" if unknown
    # where a consumer asks for embeddings that it is still making, None if it cannot be asked
    ec_endpoint: dict[str, Any] | None = None
    ec_compatibility: str = ""  # what those must share whose embeddings it reads, "" if unknown
    # where encoders push embeddings to, for each data-parallel rank; empty: it fetches them itself
    ec_zmq_addrs: tuple[str, ...] = ()
    dialect: Dialect | None = None  # None until it has been asked for it
    does_all: bool = False  # it encodes what it computes with
    changes_role: bool = False  # it takes every kind of call; a master says which it serves
    resumes: bool = False  # it can resume a stream that another worker has begun
    fingerprint: str = ""  # its `system_fingerprint` in OpenAI's answers, "" if not seen yet
    _at_rank: Counter[int] = field(default_factory=Counter)  # requests that were bound to each rank
    _turn: int = 0  # the rank that comes first where several have as few

    @property
    def tells_adapters(self) -> bool:
        """Whether it is to be asked again for its LoRA adapters: no master tells of them."""
        computes = self.dialect == "tokens" and self.role != "encode"
        return computes and not (self.known_to_master or self.removed)

    @property
    def doubtful(self) -> bool:
        """Whether it is to be probed although a master answers."""
        return not (self.up and self.known and self.known_to_master) or self.suspect

    def usable(self, now: float) -> bool:
        """Whether a request may be sent there; `now` as of its breaker."""
        return not (self.draining or self.misfit) and self.serves(now)

    def serves(self, now: float) -> bool:
        """Whether it may be asked for what it holds, even if it drains."""
        # `removed` beside `up`: a probe that was under way at its removal may find it well.
        return self.up and not self.removed and self.breaker.admits(now)

    def may_say(self, name: str, status: int) -> bool:
        """Whether an answer that names an instance, "" for none, can be this worker's. One of
        another engine names none. A worker of ours whose answers are not known yet knows its own
        routes at least."""
        if self.dialect != "tokens":
            return True
        if name:
            return name in (self.process, self.instance_id) or not (
                self.process or self.instance_id
            )
        return not self.names_itself and status not in (404, 405)

    def answered(self) -> None:
        """A probe has found it well."""
        self.up, self.late_probes = True, 0
        self.suspect = self.lost = False

    def refused(self, cause: str) -> None:
        """A probe has found it down, or no master knows it. What it was asked ends with its
        connections."""
        self.up = False
        self.cause = cause
        self.restarted()

    def restarted(self) -> None:
        """The worker has restarted, or may have: it is asked anew what it is, and drains only if a
        master says so."""
        self.known = False
        self.draining = self.draining and self.known_to_master

    def quiet(self, now: float) -> bool:
        """Whether calls wait there that nothing was heard of for a while."""
        return self.in_flight > 0 and now - self.heard > _QUIET_S

    def late(self, alone: bool, cut_off: bool) -> None:
        """It has not answered its last probe in time, which counts already. Only if that happens
        again and again it is lost, for a busy machine is not a dead worker; more often if no
        other could take its work, `alone`. One whose address does not answer at all, `cut_off`, is
        lost at once unless it is alone."""
        enough = 1 if cut_off else _LATE_PROBES
        if self.late_probes >= (_LATE_PROBES_ALONE if alone else enough):
            self.refused(
                "its address does not answer" if cut_off else "it has been silent for too long"
            )
            self.lost = True

    def left(self) -> None:
        """No master has heard of it for long: another silence is enough."""
        self.known_to_master = False
        self.refused("no master knows it")
        # It is not known yet whether it is gone, or only the master forgot it.
        self.late_probes = max(self.late_probes, _LATE_PROBES_ALONE - 1)

    def enter_rank(self) -> int:
        """Bind a request to the data-parallel rank that has the fewest, in turn if several do."""
        size = len(self.ec_zmq_addrs)
        ranks = ((self._turn + step) % size for step in range(size))
        rank = min(ranks, key=lambda one: self._at_rank[one])
        self._turn = rank + 1
        self._at_rank[rank] += 1
        return rank

    def leave_rank(self, rank: int) -> None:
        """A request that was bound to this rank has ended."""
        self._at_rank[rank] -= 1

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Count a call at this worker while it lasts."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
