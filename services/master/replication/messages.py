"""What masters of one fleet tell one another: msgpack, over a channel that loses messages now and
then. All of it is either said again soon (who is there) or true for a short time only (load).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.errors import InvalidRequest
from protocol.placement import Stage
from protocol.registry import Amount, Heartbeat, InstanceInfo, Load, Name, StageRole

logger = logging.getLogger(__name__)
MAX_KEYS = 8192  # blocks of one prompt that are told; what is beyond is found out by events
# A larger change is not sent, so that no message is too large for those who read it.
LARGEST_CHANGE = 15 << 20
LARGEST_MESSAGE = 16 << 20
_MESSAGE_BYTES = 1 << 20  # a channel of Redis holds no more than a few MB that wait to be read
_KEY_BYTES = 8
_Start = Annotated[int, Meta(ge=0, le=1 << 20)]
_Blob = Annotated[bytes, Meta(max_length=MAX_KEYS * _KEY_BYTES)]


class Change(msgspec.Struct, tag_field="t", omit_defaults=True):
    pass


class Joined(Change, tag="joined"):
    """A worker is there, as it said to the master that hears it (`home`), where it has been
    known for `age_ms` since it started. `draining`: by a call to a master, until a call takes it
    back; `says_draining`: by the worker's own word, until a heartbeat says otherwise."""

    info: InstanceInfo
    home: Name
    draining: bool = False
    age_ms: Amount = 0.0
    says_draining: bool = False


class Beat(Change, tag="beat"):
    """A worker's heartbeat. `draining`: by its own word or by the master's."""

    beat: Heartbeat


class Kept(Change, tag="kept"):
    """A worker whose home is silent has answered a probe; the master that keeps it says so."""

    worker: Joined


class Left(Change, tag="left"):
    """A worker has deregistered, perhaps because it has `failed`, or was replaced; or its `home`
    heard nothing for a lease."""

    instance_id: Name
    generation: str = ""
    lapsed: bool = False
    failed: bool = False


class Resumed(Change, tag="resumed"):
    """A drained worker was taken back by a call."""

    instance_id: Name
    generation: str = ""


class Moved(Change, tag="moved"):
    """A worker is to serve another role: decided by the master that tells it."""

    instance_id: Name
    role: StageRole
    generation: str = ""


class Opened(Change, tag="opened"):
    """A circuit breaker has opened for so many ms."""

    instance_id: Name
    generation: str = ""
    open_ms: Amount = 0.0


class SharedCharge(msgspec.Struct, array_like=True):
    """A `Charge`."""

    instance_id: Name  # of the worker
    visible_ms: Amount = 0.0  # until its own reports show it
    work_ms: Amount = 0.0  # of its kind of work
    tokens: Amount = 0.0  # to be computed
    context: Amount = 0.0  # tokens to be decoded on
    blocks: Amount = 0.0  # of KV
    haste: Amount = 0.0  # decode steps per ms that its objective asks for


class SharedEncode(msgspec.Struct, array_like=True):
    """A picture that an encoder was asked for; later requests may join it for `expires_ms`, 0 for
    not at all."""

    mm_hash: Name
    charge: SharedCharge
    ready_ms: Amount = 0.0
    expires_ms: Amount = 0.0


class Placed(Change, tag="placed"):
    """What a request holds."""

    request_id: Name  # which request
    model: Name  # of its fleet
    ttl_ms: Amount  # after which it is given up unless its end is told
    encodes: list[SharedEncode] = []  # what its pictures are counted for
    prefill: SharedCharge | None = None  # what its prefill is counted for
    decode: SharedCharge | None = None  # the same of its decode
    start: _Start = 0  # number of the first of its `keys`: those before it the worker held already
    keys: _Blob = b""  # of its blocks, packed
    mm_hashes: list[str] = []  # of its pictures, where a worker's events do not tell of its caches
    expected: bool = False  # its prompt's blocks will be at its prefill worker soon
    predicted: bool = False  # its keys and hashes are those of a proxy that has no model
    media: bool = False  # it brings pictures or clips


class Ended(Change, tag="ended"):
    """A stage of a placed request has ended; `ok`: its work was done. `stray`: another master than
    the one that tells it has placed it."""

    request_id: Name
    stage: Stage = "request"
    mm_hashes: list[str] = []
    ok: bool = True
    stray: bool = False


class Added(Change, tag="added"):
    """A worker that cannot register was added by hand. `body`: JSON of `ProbedInstance`. `fresh`:
    at this moment."""

    name: Name
    body: bytes
    fresh: bool = False


class Removed(Change, tag="removed"):
    """Such a worker was removed by hand."""

    name: Name


class _Message(msgspec.Struct, array_like=True):
    sender: Name
    # Read one by one: a change that cannot be read costs none of the others.
    changes: list[msgspec.Raw]


_Changes = Joined | Beat | Kept | Left | Resumed | Moved | Opened | Placed | Ended | Added | Removed
_messages = msgspec.msgpack.Decoder(_Message)
_changes: msgspec.msgpack.Decoder[Change] = msgspec.msgpack.Decoder(_Changes)
_stored: msgspec.msgpack.Decoder[Joined] = msgspec.msgpack.Decoder(Joined)


def encode_messages(
    sender: str, changes: Sequence[Change]
) -> Iterator[tuple[bytes, Sequence[Change]]]:
    """The changes in order, some at a time, each time with the message that tells them: one at
    least, for it says that the sender is there. What cannot be told stands in none."""
    start, raws, size = 0, list[msgspec.Raw](), 0
    for number, change in enumerate(changes):
        raw = _raw(change)
        if raws and size + len(raw) > _MESSAGE_BYTES:
            yield msgspec.msgpack.encode([sender, raws]), changes[start:number]
            start, raws, size = number, [], 0
        if raw:
            raws.append(msgspec.Raw(raw))
            size += len(raw)
    yield msgspec.msgpack.encode([sender, raws]), changes[start:]


def _raw(change: Change) -> bytes:
    """b"" for what cannot be told."""
    try:
        raw = msgspec.msgpack.encode(change)
    except (TypeError, ValueError, OverflowError, RecursionError):
        logger.exception("%s cannot be sent to other masters", type(change).__name__)
        return b""
    return raw if len(raw) <= LARGEST_CHANGE else b""


def decode_message(data: bytes) -> tuple[str, list[Change], int]:
    """(sender, changes in order, how many could not be read); `InvalidRequest` if it is none."""
    try:
        message = _messages.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"a message of a master is malformed: {error}", code="garbage"
        ) from None
    found, garbage = [], 0
    for raw in message.changes:
        try:
            found.append(_changes.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            garbage += 1
    return message.sender, found, garbage


def encode_stored(joined: Joined) -> bytes:
    """As it stands under the worker's key. Its load would be old when it is read."""
    info = msgspec.structs.replace(joined.info, load=Load())
    return msgspec.msgpack.encode(msgspec.structs.replace(joined, info=info))


def decode_stored(data: bytes) -> Joined:
    """A stored worker; `InvalidRequest` if it is none."""
    try:
        return _stored.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"a worker's entry is malformed: {error}", code="garbage") from None
