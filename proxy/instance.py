"""One worker as this proxy knows it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from protocol.types import Role
from proxy.breaker import Breaker

Dialect = Literal["tokens", "openai"]


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
    `vouched`: a master says that it is there.
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
    in_flight: int = 0
    late_probes: int = 0
    max_running: int = 0
    block_size: int = 0
    kv_endpoint: dict[str, Any] | None = None
    ec_endpoint: dict[str, Any] | None = None
    dialect: Dialect | None = None

    def usable(self, now: float) -> bool:
        """Whether a request may be sent there; `now` as of its breaker."""
        return self.up and not self.draining and self.breaker.admits(now)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Count a call at this worker while it lasts."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
