"""One worker as this proxy knows it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from protocol.types import Role
from proxy.fleet.circuit_breaker import Breaker

Dialect = Literal["tokens", "openai"]
WorkingRole = Literal["encode", "prefill", "decode", "prefill_decode", "pdfusion"]
_LATE_PROBES = 3
_LATE_PROBES_ALONE = 10


def stage_of(role: WorkingRole) -> Role:
    """The stage that a worker serves; one that prefills and decodes is asked to decode."""
    return role if role == "encode" or role == "prefill" else "decode"


@dataclass(eq=False)
class Instance:
    """`up`: it may be asked. `lost`: it has been silent for so long that what it was asked is given
    up. `draining`: it finishes what it has. A `suspect` has not answered in time; it is asked only
    if there is nobody else, until it has been probed again. `in_flight` counts this proxy's calls
    there, `max_running` what it runs at once (0: unknown).

    `kv_endpoint` is where a decode worker asks for KV that a prefill worker is still computing,
    `ec_endpoint` where a consumer asks for embeddings that an encoder is still making; None if they
    cannot be asked. `dialect` is None until it has been asked for it; `known` tells that the worker
    has said all that since it came up. `listed`: by a flag, so it stays whatever a master says.
    `vouched`: a master says that it is there. `departed`: it is no more of the fleet, and finishes
    what it has. `late_probes` counts those it has not answered in time since it last did.

    `resumes`: it can go on with a stream that another worker has begun. `fingerprint` is what it
    calls its make in OpenAI's `system_fingerprint`, "" if that has not been seen.
    """

    url: str
    role: Role
    breaker: Breaker = field(default_factory=Breaker)
    instance_id: str = ""
    generation: str = ""
    up: bool = True
    lost: bool = False
    draining: bool = False
    suspect: bool = False
    known: bool = False
    listed: bool = False
    vouched: bool = False
    departed: bool = False
    in_flight: int = 0
    late_probes: int = 0
    max_running: int = 0
    block_size: int = 0
    model: str = ""
    revision: str = ""
    kv_endpoint: dict[str, Any] | None = None
    ec_endpoint: dict[str, Any] | None = None
    dialect: Dialect | None = None
    resumes: bool = False
    fingerprint: str = ""

    def usable(self, now: float) -> bool:
        """Whether a request may be sent there; `now` as of its breaker."""
        return not self.draining and self.serves(now)

    def serves(self, now: float) -> bool:
        """Whether it may be asked for what it holds, even if it drains."""
        return self.up and not self.departed and self.breaker.admits(now)

    def answered(self) -> None:
        """A probe has found it well."""
        self.up, self.late_probes = True, 0
        self.suspect = self.lost = False

    def refused(self) -> None:
        """A probe has found it down. What it was asked ends with its connections; its next life
        does not drain unless a master says so."""
        self.up = self.known = False
        self.draining = self.draining and self.vouched

    def late(self, alone: bool) -> None:
        """It has not answered a probe in time. Only if that happens again and again it is lost, for
        a busy machine is not a dead worker; more often if nobody could take its work, `alone`."""
        self.late_probes += 1
        if self.late_probes >= (_LATE_PROBES_ALONE if alone else _LATE_PROBES):
            self.refused()
            self.lost = True

    def left(self) -> None:
        """No master has heard of it for long: another silence is enough."""
        self.vouched = False
        self.refused()
        self.late_probes = max(self.late_probes, _LATE_PROBES_ALONE - 1)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Count a call at this worker while it lasts."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
