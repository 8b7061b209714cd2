"""What two engines say to each other on the side channel (msgpack over ZMQ).

Every message carries the protocol's version; one of another version is refused.
"""

from __future__ import annotations

import msgspec

PROTOCOL_VERSION = 3


class Hello(msgspec.Struct, tag=True):
    """A consumer introduces itself once per peer. `compatibility` by region ("kv", "ec")."""

    query: int
    instance_id: str
    transport: str
    region: str
    compatibility: str
    version: int = PROTOCOL_VERSION


class Welcome(msgspec.Struct, tag=True):
    """`description` is what the transport needs to read the region."""

    query: int
    instance_id: str
    description: bytes


class Refused(msgspec.Struct, tag=True):
    """The two sides cannot be peers; `reason` names both."""

    query: int
    reason: str


class KVWant(msgspec.Struct, tag=True):
    """Send me the KV of a request as it becomes ready. It may not have come to the producer yet if
    it is `growing`."""

    request_id: str
    growing: bool
    version: int = PROTOCOL_VERSION


class KVReady(msgspec.Struct, tag=True):
    """Blocks first, first + 1, … of the request's table are complete, in these pool blocks."""

    request_id: str
    generation: int
    first: int
    blocks: list[int]


class KVEnd(msgspec.Struct, tag=True):
    """No more blocks come: `num_tokens` of the prompt have KV. `outputs` are the first tokens."""

    request_id: str
    generation: int
    num_tokens: int
    rope_delta: int
    outputs: dict[int, list[int]]


class KVGone(msgspec.Struct, tag=True):
    """The producer does not hold this request's KV any more."""

    request_id: str
    reason: str


class KVFetched(msgspec.Struct, tag=True):
    """All blocks are copied; was the lease still good? It ends here either way."""

    query: int
    request_id: str
    generation: int
    version: int = PROTOCOL_VERSION


class ECWant(msgspec.Struct, tag=True):
    """Tell me where an entry is as soon as it is there, for `wait_s` seconds."""

    query: int
    mm_hash: str
    wait_s: float
    version: int = PROTOCOL_VERSION


class ECTensor(msgspec.Struct, frozen=True):
    """One tensor of an entry: `offset` and `nbytes` in the producer's region."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


class ECGrant(msgspec.Struct, tag=True):
    """The entry is pinned for the asker until it says that it is done, or the lease lapses. The
    number of a grant is never used again."""

    query: int
    grant: int
    tensors: list[ECTensor]


class ECLost(msgspec.Struct, tag=True):
    """The entry is not here, and nobody has asked for it to be made."""

    query: int


class ECDone(msgspec.Struct, tag=True):
    """The asker has read an entry, or does not want it any more; `grant` is 0 if there was none.
    Was the grant still good? It ends here either way."""

    query: int
    mm_hash: str
    grant: int
    version: int = PROTOCOL_VERSION


class ECForget(msgspec.Struct, tag=True):
    """The request `holder`, which an entry is kept for, does not need it any more."""

    mm_hash: str
    holder: str
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

    request_ids: list[str]
    version: int = PROTOCOL_VERSION


class Heartbeat(msgspec.Struct, tag=True):
    """The consumer still wants these requests' KV."""

    request_ids: list[str]
    version: int = PROTOCOL_VERSION


class Alive(msgspec.Struct, tag=True):
    """Answer to `Heartbeat`: there may be nothing to tell for long."""


FromConsumer = Hello | KVWant | KVFetched | ECWant | ECDone | ECForget | Release | Heartbeat
FromProducer = (
    Welcome | Refused | KVReady | KVEnd | KVGone | ECGrant | ECLost | ECHeld | Held | Alive
)
