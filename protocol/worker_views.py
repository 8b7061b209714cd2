"""What proxies and masters tell each other about workers. JSON, as `protocol.registry`.

GET  /workers     ?after&wait_s    → Workers          who is there, or what has changed
POST /suspect     Suspected        → LeaseAnswer      a proxy could not connect to it
"""

from __future__ import annotations

import msgspec

from protocol.registry import Count, InstanceInfo, Name, Rates

WORKERS_PATH = "/workers"
SUSPECT_PATH = "/suspect"


class Suspected(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that a proxy could not connect to (refused, reset). The master asks the worker's
    `/health` at once, and takes it out of choice if that fails. `generation` as in
    `InstanceName`."""

    instance_id: Name
    generation: str = ""


class WorkerView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker as the master sees it, as of the answer."""

    info: InstanceInfo  # as registered, without `load`
    draining: bool = False  # it takes no new requests
    usable: bool = True  # it may get new requests
    requests: float = 0.0  # requests placed there
    queue_ms: float = 0.0  # milliseconds of work placed there
    indexed_blocks: int = 0  # KV blocks that the index knows there
    indexed_media: int = 0  # embeddings that the index knows there
    rates: Rates = Rates()  # what it has measured of itself, or the master has learnt of it
    total_blocks: Count = 0  # KV blocks of its pool, 0 if it does not say


class Workers(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every worker of every model (`full`), or those that have come, changed or (`gone`) left since
    the version that was asked for.

    `version` is opaque: the `after` of the next question, which with `wait_s` is answered when
    something changes, or then. Load is no change. After a restart of the master all is new.
    """

    version: str
    full: bool = False
    workers: list[WorkerView] = []
    gone: list[str] = []
