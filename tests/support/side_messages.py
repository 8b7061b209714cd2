"""Messages of the side channel, in order and out of it."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from connectors.messages import (
    ECDone,
    ECForget,
    ECGrant,
    ECTensor,
    ECWant,
    FromConsumer,
    FromProducer,
    Heartbeat,
    Hello,
    KVEnd,
    KVFetched,
    KVReady,
    KVWant,
    Release,
    Welcome,
)

encode = msgspec.msgpack.encode
CONSUMERS: list[FromConsumer] = [
    Hello(1, "me", "shm", "kv", "layout"),
    KVWant("r", True),
    KVFetched(1, "r", 1),
    ECWant(1, "a", 30.0),
    ECDone(1, "a", 7),
    ECForget("a", "r"),
    Release(["r"]),
    Heartbeat(["r"]),
]
PRODUCERS: list[FromProducer] = [
    Welcome(1, "me", b"description"),
    KVReady("r", 1, 0, [1]),
    KVEnd("r", 1, 16, 0, {0: [1]}),
    ECGrant(1, 1, [ECTensor("ec_cache", (1, 64), "float32", 0, 256)]),
]


def with_fields(message: msgspec.Struct, **fields: Any) -> bytes:
    return encode({**msgspec.to_builtins(message), **fields})


MESSAGES = st.sampled_from([encode(message) for message in [*CONSUMERS, *PRODUCERS]])


@st.composite
def frames(draw: st.DrawFn) -> list[bytes]:
    """Noise, or a message with some bytes changed, cut off or put in."""
    if draw(st.booleans()):
        return draw(st.lists(st.binary(max_size=100), min_size=1, max_size=3))
    data = bytearray(draw(MESSAGES))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
        data = data or bytearray(b"\xc0")
    return [bytes(data)]
