"""Wire structs between workers, proxies and the master. JSON, or msgpack by `content-type`.

    POST /register    InstanceInfo     → LeaseAnswer      a worker is there, or has restarted
    POST /heartbeat   Heartbeat        → LeaseAnswer      at least every `lease_s / 3`
    POST /deregister  InstanceName     → LeaseAnswer      it leaves; forgotten at once
    POST /drain       Drain            → LeaseAnswer      no new requests; its caches still count
    POST /schedule    ScheduleRequest  → Placement        400/404/429/503/504 with `Retry-After`
    POST /finished    FinishedReports  → LeaseAnswer      what was placed is over

`protocol.worker_views` has what proxies ask about workers.

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

InstanceRole = Literal["encode", "prefill", "decode", "prefill_decode", "pdfusion", "store"]
StageRole = Literal["encode", "prefill", "decode"]
Stage = Literal["encode", "prefill", "request"]
ItemState = Literal["encode", "pending", "cached", "prefix", "local"]

MOST_COUNT = 1 << 40
BlockKey = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Url = Annotated[str, Meta(pattern="^https?://", max_length=2048)]


class Rates(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker has measured of itself; 0 where it has not measured yet.

    An encoder run of n embedding tokens takes `encode_base_ms + n * encode_ms_per_token`; a prompt
    `prefill_base_ms + misses * prefill_ms_per_token + hits * prefill_ms_per_cached_token`; a decode
    step `decode_base_ms + requests * decode_ms_per_request + context tokens of all *
    decode_ms_per_context_token`.
    """

    encode_base_ms: Amount = 0.0  # milliseconds of an encoder run, whatever its size
    encode_ms_per_token: Amount = 0.0  # and for each embedding
    prefill_base_ms: Amount = 0.0  # milliseconds of a prompt, whatever its length
    prefill_ms_per_token: Amount = 0.0  # and for each token that is computed
    prefill_ms_per_cached_token: Amount = 0.0  # and for each token whose KV is reused
    decode_base_ms: Amount = 0.0  # milliseconds of a decode step, whatever its batch
    decode_ms_per_request: Amount = 0.0  # and for each request in the batch
    decode_ms_per_context_token: Amount = 0.0  # and for each token of their contexts
    # until KV in host memory is back, for each token; 0: not measured yet
    host_ms_per_token: Amount = 0.0
    disk_ms_per_token: Amount = 0.0  # the same of KV on disk
    transfer_bytes_per_ms: Amount = 0.0  # rate at which the worker receives KV or embeddings


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker's load when it was read."""

    queued: Count = 0  # requests (of an encoder: items) that wait
    running: Count = 0  # requests in the batch
    queued_tokens: Count = 0  # tokens of prompts or media, of both, that are still to be computed
    context_tokens: Count = 0  # tokens that have KV in the running batch
    free_blocks: Count = 0  # KV blocks that no request uses
    total_blocks: Count = 0  # KV blocks of the pool
    ec_bytes: Count = 0  # bytes of embeddings held
    ec_capacity_bytes: Count = 0  # bytes of embeddings that fit
    rates: Rates = Rates()  # what the worker has measured of itself


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the steps of a worker's engine come on."""

    steps: Count = 0  # steps that have ended
    step_s: Amount = 0.0  # seconds since the step under way began, 0 if none is
    idle_s: Amount = 0.0  # seconds since the last step ended, 0 during one
    longest_step_s: Amount = 0.0  # seconds of the longest step that has ended
    new: bool = False  # the step under way does more than any before, or something else


class InstanceInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker as it registers."""

    instance_id: Name  # unique in the fleet
    role: InstanceRole  # store: an embedding store that others read and no request runs on
    url: Url  # where masters, proxies and workers reach it
    model: Name  # the name that clients use
    generation: str = ""  # another one after each restart: the caches are empty then
    revision: str = ""  # name of the weights, as in content keys
    # digest of which token has which id (`Tokenizer.digest`), empty if it does not say
    tokenizer: Annotated[str, Meta(max_length=256)] = ""
    dialect: Literal["tokens", "openai"] = "tokens"  # protocol of its generate and encode calls
    block_size: Annotated[int, Meta(ge=1, le=65536)] = 16  # tokens in one KV block
    max_running: Count = 0  # requests that it computes at once, 0 if unknown
    kv_bytes_per_token: Count = 0  # size of one token's KV, for the price of a transfer
    kv_layout: KVLayout | None = None  # what a peer must share to take over KV, None if unknown
    # `kv_transfer_params` by which a decode worker asks for KV still being computed
    kv_endpoint: dict[str, Any] | None = None
    # entry of `ec_transfer_params` by which embeddings still being made are asked for
    ec_endpoint: dict[str, Any] | None = None
    # what a worker must share with this one to hand it embeddings, or to take its: model, weights,
    # dtype and transport; empty: it does not say, and counts as fitting all
    ec_compatibility: Annotated[str, Meta(max_length=1024)] = ""
    # where encoders push embeddings to, for each data-parallel rank; empty: it fetches them itself
    ec_zmq_addrs: Annotated[list[str], Meta(max_length=4096)] = []
    # where it publishes cache events; empty: a master predicts its caches
    events: Annotated[list[EventSource], Meta(max_length=64)] = []
    foreign: bool = False  # block hashes in its events are its engine's own, not our keys
    encodes: bool = False  # a prefill worker that can encode the media of its requests by itself
    # what `role` may become while it lives, by a master's word; empty: it keeps its role
    roles: Annotated[list[StageRole], Meta(max_length=8)] = []
    aliases: Annotated[list[Name], Meta(max_length=256)] = []  # other names of the model
    # LoRA adapters that it serves beside the model; these and the aliases may change
    adapters: Annotated[list[Name], Meta(max_length=4096)] = []
    # the adapters' names in content keys, of those that are known
    adapter_revisions: Annotated[dict[Name, Name], Meta(max_length=4096)] = {}
    # TCP port on which it speaks RTP-LLM's gRPC, 0 if it does not
    grpc_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    load: Load = Load()  # its load at registration

    @property
    def stage(self) -> StageRole | None:
        """Its role, if it is one of several that it may have."""
        return next((role for role in self.roles if role == self.role), None)


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """`draining`: the worker takes no more requests; `drained_by_master`: because a master said
    so, so that a master can take it back. `stalled`: it takes none because its engine makes no
    `progress`, and takes them again once it does. `role`: the one that it serves, of a worker that
    may have several."""

    instance_id: Name
    generation: str = ""
    load: Load = Load()
    draining: bool = False
    drained_by_master: bool = False
    stalled: bool = False
    progress: Progress = Progress()
    role: StageRole | None = None


class InstanceName(msgspec.Struct, frozen=True, omit_defaults=True):
    """`generation` empty: whichever life it is in."""

    instance_id: Name
    generation: str = ""


class Drain(InstanceName, frozen=True, omit_defaults=True):
    """`draining` false takes a worker back that was drained by a call to a master."""

    draining: bool = True


class LeaseAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`lease_s`: forgotten if not heard of for so long. `known` false: register (again).
    `draining`: take no more requests; `resume`: take them again, if a master had it drained.
    `role`: the one to serve from now on, of a worker that may have several."""

    known: bool = True
    lease_s: float = 0.0
    draining: bool = False
    resume: bool = False
    role: StageRole | None = None


class MediaNeed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A media item of the prompt: `tokens` placeholders from token `offset` on. `size_bytes` are
    those of its embeddings, 0 if unknown."""

    mm_hash: Name
    tokens: Count
    offset: Count = 0
    size_bytes: Count = 0
    modality: Modality = "image"


class ScheduleRequest(msgspec.Struct, omit_defaults=True):
    """A request to be placed. An id that is placed again gives back what it held."""

    request_id: Name  # the proxy's id of the request
    prompt_tokens: Annotated[int, Meta(ge=1, le=MOST_COUNT)]  # length of the prompt, media included
    # name of a model, an alias of it, or an adapter that some of its workers serve, which `adapter`
    # then is; empty: the only one served
    model: str = ""
    # `short_key` of every full block of `block_size` tokens, first block first
    block_keys: Annotated[list[BlockKey], Meta(max_length=1 << 20)] = []
    block_size: Annotated[int, Meta(ge=1, le=65536)] = 16  # tokens in one of these blocks
    items: Annotated[list[MediaNeed], Meta(max_length=4096)] = []  # media of the prompt, in order
    max_tokens: Annotated[int, Meta(ge=0, le=MOST_COUNT)] = 0  # output tokens at most, 0 if not stated
    priority: Annotated[int, Meta(ge=0, le=100)] = 0  # 1 to 100, higher is earlier; 0 means 50
    # seconds left when the message was sent, None for no deadline
    deadline_s: Annotated[float, Meta(le=1e9)] | None = None
    tenant: str = ""  # whose fair share it counts against (a digest of an API key)
    session: str = ""  # requests of one session prefer one worker if all else is equal
    # instance ids that have failed this request
    avoid: Annotated[list[str], Meta(max_length=1024)] = []
    debug: bool = False  # whether the answer explains the choice
    # keys and hashes are over message parts, since the proxy has no model: no worker's cache events
    # name them, and the master goes by what it has placed itself
    predicted: bool = False
    # seconds to the first token that are the objective; None: the master's own flag, 0: none
    ttft_slo_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    # seconds per output token that are the objective, likewise
    tpot_slo_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    adapter: str = ""  # LoRA adapter, where `model` names one; the master fills it in
    pooling: bool = False  # nothing is decoded: a worker that prefills does it all


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
    `local`: the worker that prefills gets the media and encodes it, since no encoder is known or
    all are busier than that worker (`target` None).
    """

    mm_hash: str
    state: ItemState
    target: Target | None = None


class Placement(msgspec.Struct, omit_defaults=True):
    """Where a request is to run."""

    request_id: str  # as in the question
    decode: Target  # worker that streams the answer
    prefill: Target | None = None  # worker that computes the prompt; None: the decode worker does
    encoders: list[ItemPlacement] = []  # where the embedding of each media item comes from
    hit_tokens: int = 0  # prompt tokens whose KV the prefilling worker is expected to hold
    ttft_ms: float = 0.0  # predicted milliseconds to the first token
    queued_ms: float = 0.0  # milliseconds that the request waited in the master's queue
    debug: dict[str, Any] | None = None  # the numbers behind the choice, if asked for


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
