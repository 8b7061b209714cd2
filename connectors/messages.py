"""What two engines say to each other on the side channel (msgpack over ZMQ).

Every message of a consumer carries the protocol's version; one of another version is refused, as is
a number or a name that is out of all bounds.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = 3
MAX_NAME = 4096
"""Characters of the longest id that travels."""

Name = Annotated[str, Meta(max_length=MAX_NAME)]
Count = Annotated[int, Meta(ge=0, lt=1 << 48)]
Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
Delta = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
Seconds = Annotated[float, Meta(ge=0)]


class Hello(msgspec.Struct, tag=True):
    """A consumer introduces itself once per peer. `compatibility` by region ("kv", "ec")."""

    query: int  # number of the question, unique in the consumer's process
    instance_id: Name  # of the consumer
    transport: Name  # name of its transport
    region: Name  # what it wants to read, "kv" or "ec"
    compatibility: Name
    version: int = PROTOCOL_VERSION  # of these messages


class Welcome(msgspec.Struct, tag=True):
    """`description` is what the transport needs to read the region."""

    query: int
    instance_id: Name
    description: bytes


class Refused(msgspec.Struct, tag=True):
    """The two sides cannot be peers; `reason` names both."""

    query: int
    reason: str


class KVWant(msgspec.Struct, tag=True):
    """Send me the KV of a request as it becomes ready. It may not have come to the producer yet if
    it is `growing`."""

    request_id: Name
    growing: bool
    version: int = PROTOCOL_VERSION


class KVReady(msgspec.Struct, tag=True):
    """Blocks first, first + 1, … of the request's table are complete, in these pool blocks."""

    request_id: Name
    generation: int
    first: Count
    blocks: list[Count]


class KVEnd(msgspec.Struct, tag=True):
    """No more blocks come: `num_tokens` of the prompt have KV. `outputs` are the first tokens, one
    of each choice. Said again whenever the consumer renews the lease: it may have been lost."""

    request_id: Name
    generation: int
    num_tokens: Count
    rope_delta: Delta
    outputs: dict[Count, list[Token]]


class KVGone(msgspec.Struct, tag=True):
    """The producer does not hold this request's KV any more, or holds it for another consumer, who
    has asked later."""

    request_id: Name
    reason: str


class KVFetched(msgspec.Struct, tag=True):
    """All blocks are copied; was the lease still good? It ends here either way."""

    query: int
    request_id: Name
    generation: int
    version: int = PROTOCOL_VERSION


class ECWant(msgspec.Struct, tag=True):
    """Tell me where an entry is as soon as it is there, for `wait_s` seconds."""

    query: int
    mm_hash: Name
    wait_s: Seconds
    version: int = PROTOCOL_VERSION


class ECTensor(msgspec.Struct, frozen=True):
    """One tensor of an entry: `offset` and `nbytes` in the producer's region."""

    name: Name
    shape: Annotated[tuple[Count, ...], Meta(max_length=8)]
    dtype: Name
    offset: Count
    nbytes: Count


class ECGrant(msgspec.Struct, tag=True):
    """The entry is pinned for the asker until it says that it is done, or the lease lapses. The
    number of a grant is never used again."""

    query: int
    grant: int
    tensors: Annotated[list[ECTensor], Meta(max_length=256)]


class ECLost(msgspec.Struct, tag=True):
    """The entry is not here, and no request has asked for it to be made."""

    query: int


class ECDone(msgspec.Struct, tag=True):
    """The asker has read an entry, or does not want it any more; `grant` is 0 if there was none.
    Was the grant still good? It ends here either way."""

    query: int
    mm_hash: Name
    grant: int
    version: int = PROTOCOL_VERSION


class ECForget(msgspec.Struct, tag=True):
    """The request `holder`, which an entry is kept for, does not need it any more."""

    mm_hash: Name
    holder: Name
    version: int = PROTOCOL_VERSION


class ECHeld(msgspec.Struct, tag=True):
    """Answer to an `ECDone` that names a grant."""

    query: int
    held: bool


class Held(msgspec.Struct, tag=True):
    """Answer to `KVFetched`."""

    query: int
    held: bool


class Release(msgspec.Struct, tag=True):
    """The consumer wants these requests' KV no more."""

    request_ids: list[Name]
    version: int = PROTOCOL_VERSION


class Heartbeat(msgspec.Struct, tag=True):
    """The consumer still wants these requests' KV."""

    request_ids: list[Name]
    version: int = PROTOCOL_VERSION


class Alive(msgspec.Struct, tag=True):
    """Answer to `Heartbeat`: there may be nothing to tell for long. `step_s`: seconds since the
    step began which the producer's engine computes; what else was asked is answered after it. 0:
    it computes none."""

    step_s: Seconds = 0.0


FromConsumer = Hello | KVWant | KVFetched | ECWant | ECDone | ECForget | Release | Heartbeat
FromProducer = (
    Welcome | Refused | KVReady | KVEnd | KVGone | ECGrant | ECLost | ECHeld | Held | Alive
)
