"""Wire structs between workers, proxies and the master. JSON, or msgpack by `content-type`.

    POST /register    InstanceInfo     → LeaseAnswer      a worker is there, or has restarted
    POST /heartbeat   Heartbeat        → LeaseAnswer      at least every `lease_s / 3`
    POST /deregister  InstanceName     → LeaseAnswer      it leaves; forgotten at once
    POST /drain       Drain            → LeaseAnswer      no new requests; its caches still count
    POST /suspect     Suspected        → LeaseAnswer      a proxy could not connect to it
    POST /schedule    ScheduleRequest  → Placement        400/404/429/503/504 with `Retry-After`
    POST /finished    FinishedReports  → LeaseAnswer      what was placed is over
    GET  /workers     ?after&wait_s    → Workers          who is there, or what has changed

All state of the master is soft: a worker that a master does not know (`LeaseAnswer.known` false)
registers again. Times are seconds unless the name says ms; nothing is a wall-clock time.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.kv_events import EventSource
from protocol.refs import KVLayout
from protocol.types import Modality

REGISTER_PATH = "/register"
HEARTBEAT_PATH = "/heartbeat"
DEREGISTER_PATH = "/deregister"
DRAIN_PATH = "/drain"
SCHEDULE_PATH = "/schedule"
FINISHED_PATH = "/finished"
WORKERS_PATH = "/workers"
SUSPECT_PATH = "/suspect"

InstanceRole = Literal["encode", "prefill", "decode", "prefill_decode", "pdfusion", "store"]
Stage = Literal["encode", "prefill", "request"]
ItemState = Literal["encode", "pending", "cached", "prefix", "local"]

_MOST = 1 << 40
BlockKey = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Url = Annotated[str, Meta(pattern="^https?://", max_length=2048)]


class Rates(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker has measured of itself; 0 where it has not measured yet.

    An encoder run of n embedding tokens takes `encode_base_ms + n * encode_ms_per_token`; a prompt
    `prefill_base_ms + misses * prefill_ms_per_token + hits * prefill_ms_per_cached_token`; a decode
    step `decode_base_ms + requests * decode_ms_per_request + context tokens of all *
    decode_ms_per_context_token`. `transfer_bytes_per_ms` is what it receives KV or embeddings at.
    """

    encode_base_ms: Amount = 0.0
    encode_ms_per_token: Amount = 0.0
    prefill_base_ms: Amount = 0.0
    prefill_ms_per_token: Amount = 0.0
    prefill_ms_per_cached_token: Amount = 0.0
    decode_base_ms: Amount = 0.0
    decode_ms_per_request: Amount = 0.0
    decode_ms_per_context_token: Amount = 0.0
    transfer_bytes_per_ms: Amount = 0.0


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker's load when it was read.

    `queued` requests (or items) wait, `running` are in the batch; `queued_tokens` of prompts or
    media of both are still to be computed; `context_tokens` have KV in the running batch.
    """

    queued: Count = 0
    running: Count = 0
    queued_tokens: Count = 0
    context_tokens: Count = 0
    free_blocks: Count = 0
    total_blocks: Count = 0
    ec_bytes: Count = 0
    ec_capacity_bytes: Count = 0
    rates: Rates = Rates()


class InstanceInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker as it registers. `role` "store" is an EC store that others read and nobody runs on.

    `generation` differs in every life of a process: a known id with another one has lost its
    caches. `events` empty: its caches are predicted from what is placed there. `foreign`: block
    hashes in its events are its engine's own. `kv_endpoint`: `kv_transfer_params` that let a decode
    worker ask for KV still being computed; `ec_endpoint`: the entry of `ec_transfer_params` that
    lets a prefill worker ask for embeddings still being made. `kv_bytes_per_token`: for the price
    of moving KV. `max_running`: requests it runs at once, 0 if unknown.
    """

    instance_id: Name
    role: InstanceRole
    url: Url
    model: Name
    generation: str = ""
    revision: str = ""
    dialect: Literal["tokens", "openai"] = "tokens"
    block_size: Annotated[int, Meta(ge=1, le=65536)] = 16
    max_running: Count = 0
    kv_bytes_per_token: Count = 0
    kv_layout: KVLayout | None = None
    kv_endpoint: dict[str, Any] | None = None
    ec_endpoint: dict[str, Any] | None = None
    events: Annotated[list[EventSource], Meta(max_length=64)] = []
    foreign: bool = False
    load: Load = Load()


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """`draining`: the worker takes no more requests; `drained_by_master`: because a master said
    so, so that a master can take it back."""

    instance_id: Name
    generation: str = ""
    load: Load = Load()
    draining: bool = False
    drained_by_master: bool = False


class InstanceName(msgspec.Struct, frozen=True, omit_defaults=True):
    """`generation` empty: whichever life it is in."""

    instance_id: Name
    generation: str = ""


class Drain(InstanceName, frozen=True, omit_defaults=True):
    """`draining` false takes a worker back that was drained by a call to a master."""

    draining: bool = True


class Suspected(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that a proxy could not connect to (refused, reset). The master asks the worker's
    `/health` at once, and takes it out of choice if that fails. `generation` as in
    `InstanceName`."""

    instance_id: Name
    generation: str = ""


class LeaseAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`lease_s`: forgotten if not heard of for so long. `known` false: register (again).
    `draining`: take no more requests; `resume`: take them again, if a master had it drained."""

    known: bool = True
    lease_s: float = 0.0
    draining: bool = False
    resume: bool = False


class MediaNeed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A media item of the prompt: `tokens` placeholders from token `offset` on. `size_bytes` are
    those of its embeddings, 0 if unknown."""

    mm_hash: Name
    tokens: Count
    offset: Count = 0
    size_bytes: Count = 0
    modality: Modality = "image"


class ScheduleRequest(msgspec.Struct, omit_defaults=True):
    """`block_keys`: `short_key` of every full block of `block_size` tokens, first block first.

    `priority` 1 to 100, higher is earlier, 0 means 50. `deadline_s`: time left; None for none.
    `tenant`: whose fair share it counts against (an API key's name). `session`: requests of one
    session prefer one worker if all else is equal. `avoid`: instance ids that have failed it.
    A request id that is placed again gives back what it held.

    `predicted`: `block_keys` and the items' `mm_hash` are the proxy's own, over message parts and
    media bytes, as it has no model to render with. No worker's cache events name them: the master
    goes by what it has placed itself. `ttft_slo_s`, `tpot_slo_s`: the objectives of this request,
    time to the first token and per output token; None for the master's own flags, 0 for none.
    """

    request_id: Name
    prompt_tokens: Annotated[int, Meta(ge=1, le=_MOST)]
    model: str = ""
    block_keys: Annotated[list[BlockKey], Meta(max_length=1 << 20)] = []
    block_size: Annotated[int, Meta(ge=1, le=65536)] = 16
    items: Annotated[list[MediaNeed], Meta(max_length=4096)] = []
    max_tokens: Annotated[int, Meta(ge=0, le=_MOST)] = 0
    priority: Annotated[int, Meta(ge=0, le=100)] = 0
    deadline_s: Annotated[float, Meta(le=1e9)] | None = None
    tenant: str = ""
    session: str = ""
    avoid: Annotated[list[str], Meta(max_length=1024)] = []
    debug: bool = False
    predicted: bool = False
    ttft_slo_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    tpot_slo_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker to call."""

    instance_id: str
    url: str
    role: InstanceRole
    dialect: Literal["tokens", "openai"] = "tokens"
    kv_endpoint: dict[str, Any] | None = None
    ec_endpoint: dict[str, Any] | None = None


class ItemPlacement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an item's embeddings come from.

    `encode`: `target` is to encode it. `pending`: another request has `target` encode it already.
    `cached`: `target` holds it. `prefix`: the prefill worker holds the KV of its whole span.
    `local`: no encoder is known; the worker that prefills gets the media (`target` None).
    """

    mm_hash: str
    state: ItemState
    target: Target | None = None


class Placement(msgspec.Struct, omit_defaults=True):
    """`prefill` None: the decode worker does both. `hit_tokens`: prompt tokens whose KV the worker
    that prefills is expected to hold. `debug`: the numbers behind the choice, if asked for."""

    request_id: str
    decode: Target
    prefill: Target | None = None
    encoders: list[ItemPlacement] = []
    hit_tokens: int = 0
    ttft_ms: float = 0.0
    queued_ms: float = 0.0
    debug: dict[str, Any] | None = None


class Finished(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stage is over: `encode` of `mm_hashes`, `prefill`, or the whole `request`.

    `failed`: instance ids that refused, hung or broke while at it. `aborted`: it was given up, by
    its client or at its deadline, so that nothing is known of those that were at it.

    Timings, by which the master learns the rates of workers that do not measure themselves; 0 where
    unknown. `elapsed_s`: what the call of the stage took, for `request` the decode call. `first_s`:
    from that call to its first token. `output_tokens`: of the answer.
    """

    request_id: Name
    stage: Stage = "request"
    mm_hashes: Annotated[list[str], Meta(max_length=4096)] = []
    failed: Annotated[list[str], Meta(max_length=1024)] = []
    aborted: bool = False
    elapsed_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    first_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    output_tokens: Count = 0

    @property
    def done(self) -> bool:
        """Whether the work of the stage was done."""
        return not (self.failed or self.aborted)


class FinishedReports(msgspec.Struct, frozen=True):
    reports: Annotated[list[Finished], Meta(max_length=65536)]


class WorkerView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker as the master sees it; `info.load` is left out. `usable`: it may get new requests.
    `requests` and `queue_ms` of work count what is placed there, as of the answer."""

    info: InstanceInfo
    draining: bool = False
    usable: bool = True
    requests: float = 0.0
    queue_ms: float = 0.0
    indexed_blocks: int = 0
    indexed_media: int = 0


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
