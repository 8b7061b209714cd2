"""Workers as they register, and as masters tell proxies of them.

    POST /register    InstanceInfo     → LeaseAnswer      a worker is there, or has restarted
    POST /heartbeat   Heartbeat        → LeaseAnswer      at least every `lease_s / 3`
    POST /deregister  InstanceName     → LeaseAnswer      it leaves; forgotten at once
    POST /drain       Drain            → LeaseAnswer      no new requests; its caches still count
    GET  /workers     ?after&wait_s    → Workers          who is there, or what has changed
    POST /suspect     Suspected        → LeaseAnswer      a proxy could not connect to it

`protocol.placement` has what proxies ask for each request.

All state of the master is soft: a worker that a master does not know (`LeaseAnswer.known` false)
registers again. Messages are JSON, or msgpack by `content-type`. Times are seconds unless the name
says ms; nothing is a wall-clock time.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.kv_events import EventSource
from protocol.refs import KVLayout

REGISTER_PATH = "/register"
HEARTBEAT_PATH = "/heartbeat"
DEREGISTER_PATH = "/deregister"
DRAIN_PATH = "/drain"

InstanceRole = Literal["encode", "prefill", "decode", "prefill_decode", "pdfusion", "store"]
StageRole = Literal["encode", "prefill", "decode"]

MOST_COUNT = 1 << 40
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

    encode_base_ms: Amount = 0.0  # milliseconds of an encoder run of any size
    encode_ms_per_token: Amount = 0.0  # and for each embedding
    prefill_base_ms: Amount = 0.0  # milliseconds of a prompt of any length
    prefill_ms_per_token: Amount = 0.0  # and for each token that is computed
    prefill_ms_per_cached_token: Amount = 0.0  # and for each token whose KV is reused
    decode_base_ms: Amount = 0.0  # milliseconds of a decode step of any batch
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
    """A worker is still there."""

    instance_id: Name  # who beats
    generation: str = ""  # as in `InstanceInfo`
    load: Load = Load()  # when the beat was sent
    draining: bool = False  # it takes no more requests
    drained_by_master: bool = False  # because a master said so, which can take it back
    # it takes none because its engine makes no `progress`; again once it does
    stalled: bool = False
    progress: Progress = Progress()  # how its engine's steps come on
    role: StageRole | None = None  # the one it serves, of a worker that may have several


class InstanceName(msgspec.Struct, frozen=True, omit_defaults=True):
    """`generation` empty: any generation. `failed`, where it deregisters: it does not mean
    to, but cannot go on."""

    instance_id: Name
    generation: str = ""
    failed: bool = False


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
    the version that was asked for. Of the `gone` those are `retired` that left on purpose: by word
    of their own, or removed or drained by a call.

    `version` is opaque: the `after` of the next question, which with `wait_s` is answered when
    something changes, or then. Load is no change. After a restart of the master all is new.
    """

    version: str
    full: bool = False
    workers: list[WorkerView] = []
    gone: list[str] = []
    retired: list[str] = []
