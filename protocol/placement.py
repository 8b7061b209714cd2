"""Where a request is to run: what proxies ask a master, and tell it at the end.

    POST /schedule    ScheduleRequest   → Placement       400/404/429/503/504 with `Retry-After`
    POST /schedules   ScheduleRequests  → Scheduled       several at once, none of which waits
    POST /finished    FinishedReports   → LeaseAnswer     placed stages have ended

JSON, or msgpack by `content-type`, as `protocol.registry`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.errors import ErrorInfo
from protocol.registry import MOST_COUNT, Count, InstanceRole, Name
from protocol.types import Modality

SCHEDULE_PATH = "/schedule"
SCHEDULES_PATH = "/schedules"
MOST_AT_ONCE = 64  # requests that are placed by one call
FINISHED_PATH = "/finished"
Stage = Literal["encode", "prefill", "request"]
ItemState = Literal["encode", "pending", "cached", "prefix", "local"]
BlockKey = Annotated[int, Meta(ge=0)]


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
    max_tokens: Annotated[int, Meta(ge=0, le=MOST_COUNT)] = (
        0  # output tokens at most, 0 if not stated
    )
    priority: Annotated[int, Meta(ge=0, le=100)] = 0  # 1 to 100, higher is earlier; 0 means 50
    # seconds left when the message was sent, None for no deadline
    deadline_s: Annotated[float, Meta(le=1e9)] | None = None
    tenant: str = ""  # whose fair share it counts against (a digest of an API key)
    session: str = ""  # requests of one session prefer one worker if all else is equal
    # instance ids that get no part of it: they have failed it, or cannot read it
    avoid: Annotated[list[str], Meta(max_length=1024)] = []
    retry: bool = False  # a worker has failed it: its client may have part of the answer
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
    alone: bool = False  # one worker computes the prompt and the answer


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker to call."""

    instance_id: str  # of the worker
    url: str  # where it is called
    role: InstanceRole  # what it does
    dialect: Literal["tokens", "openai"] = "tokens"  # how it is called
    kv_endpoint: dict[str, Any] | None = None  # where its KV is fetched, None if it is not
    ec_endpoint: dict[str, Any] | None = None  # where its embeddings are fetched, likewise


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


class ScheduleRequests(msgspec.Struct, frozen=True):
    requests: Annotated[list[ScheduleRequest], Meta(max_length=MOST_AT_ONCE)]


class ScheduleResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one of several requests. Without a placement and an error it would have to wait for a
    worker: it is to be asked for by itself."""

    placement: Placement | None = None
    error: ErrorInfo | None = None
    retry_after_s: float | None = None  # of the error


class Scheduled(msgspec.Struct, frozen=True):
    results: list[ScheduleResult]  # in the order of the requests


class Finished(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stage has ended.

    By its timings, 0 where unknown, the master learns the rates of workers that do not measure
    themselves.
    """

    request_id: Name  # as in the placement
    stage: Stage = "request"  # encode: of `mm_hashes`; request: all of it
    mm_hashes: Annotated[list[str], Meta(max_length=4096)] = []  # items that were encoded
    # instance ids that refused, hung or broke while at it
    failed: Annotated[list[str], Meta(max_length=1024)] = []
    # given up by its client or at its deadline: nothing is known of the workers
    aborted: bool = False
    # what the call of the stage took; of a request, the decode call
    elapsed_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    first_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0  # from that call to its first token
    output_tokens: Count = 0  # of the answer

    @property
    def done(self) -> bool:
        """Whether the work of the stage was done."""
        return not (self.failed or self.aborted)


class FinishedReports(msgspec.Struct, frozen=True):
    reports: Annotated[list[Finished], Meta(max_length=65536)]
