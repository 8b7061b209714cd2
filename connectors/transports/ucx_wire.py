"""What UCX transports say to each other: descriptions, requests, tags, and how ranges are grouped;
which connection to a peer is the latest.

Every message is sealed (magic, version, CRC-32), because the addresses inside go to UCX as they are
and UCX aborts the process on one that is damaged.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from connectors.transports.base import Range
from protocol.errors import IncompatiblePeer, TransferError

VERSION = 1
BUNDLE = 2 << 20  # bytes of small ranges that travel as one message
DIRECT = 32 << 10  # a range of this size or more is a message of its own
MAX_REQUEST = 4 << 20
MAX_REASON = 500  # bytes that tell why a read is refused; more are cut off
# Two bits are left for them, see `tag`.
REQUEST, DATA, REFUSAL = 1, 2, 3
"""Kinds of messages, in their tags."""
_MAGIC = b"triptych-ucx"
_HEAD = len(_MAGIC) + 5
_INDEX_BITS = 20
_TRANSFER_BITS = 42
_MAX_PEERS = 1024  # with epochs of their own
_MAX_PIECE = 22  # bytes of one in a request
_T = TypeVar("_T")

Piece = tuple[int, int]
"""Offset and size in the owner's region."""


class UcxDescription(msgspec.Struct, frozen=True, array_like=True):
    """`address` is the owner's UCX worker; `host` says whether its memory is the CPU's."""

    address: bytes
    region: str
    nbytes: int
    host: bool


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Send these messages, each of one or more pieces, to the worker at `reply`, over a connection
    of this `epoch` or a later one."""

    reply: bytes
    epoch: int
    transfer: int
    region: str
    messages: list[list[Piece]]


class StopRequest(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """The rest of a transfer is not wanted any more."""

    reply: bytes
    epoch: int
    transfer: int


_DESCRIPTION: msgspec.msgpack.Decoder[UcxDescription] = msgspec.msgpack.Decoder(UcxDescription)
_REQUEST: msgspec.msgpack.Decoder[ReadRequest | StopRequest] = msgspec.msgpack.Decoder(
    ReadRequest | StopRequest
)


def tag(kind: int, transfer: int = 0, index: int = 0) -> int:
    """64 bits: kind, the reader's transfer, the message's place in it."""
    return kind << (_TRANSFER_BITS + _INDEX_BITS) | transfer << _INDEX_BITS | index


def untag(value: int) -> tuple[int, int, int]:
    """Kind (as it came), transfer, index."""
    transfer = value >> _INDEX_BITS & transfer_mask()
    return value >> (_TRANSFER_BITS + _INDEX_BITS), transfer, value & ((1 << _INDEX_BITS) - 1)


def transfer_mask() -> int:
    return (1 << _TRANSFER_BITS) - 1


def seal(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return b"".join((_MAGIC, bytes([VERSION]), zlib.crc32(body).to_bytes(4, "big"), body))


def open_description(data: bytes) -> UcxDescription:
    """`TransferError` if it is not one of ours, `IncompatiblePeer` if it is of another version."""
    return _unseal(data, _DESCRIPTION)


def open_request(data: bytes) -> ReadRequest | StopRequest:
    """Errors as for descriptions."""
    return _unseal(data, _REQUEST)


def _unseal(data: bytes, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    if len(data) < _HEAD or not data.startswith(_MAGIC):
        raise TransferError("ucx: a message has a wrong signature")
    version, body = data[len(_MAGIC)], data[_HEAD:]
    if version != VERSION:
        raise IncompatiblePeer(f"ucx: the peer speaks version {version}, ours is {VERSION}")
    if zlib.crc32(body) != int.from_bytes(data[_HEAD - 4 : _HEAD], "big"):
        raise TransferError("ucx: a message has a wrong checksum")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise TransferError(f"ucx: a message is malformed: {error}") from None


def plan(ranges: Sequence[Range], bundles: bool) -> list[list[Range]]:
    """The messages of a transfer: runs that are contiguous on both sides as one range; large ranges
    each by itself, small ones bundled if both sides can copy them with the CPU."""
    if len(ranges) == 1:
        return [list(ranges)]
    messages: list[list[Range]] = []
    room = 0
    for r in _merged(ranges):
        if not bundles or r.size >= DIRECT:
            messages.append([r])
            continue
        if room < r.size:
            bundle: list[Range] = []
            messages.append(bundle)
            room = BUNDLE
        bundle.append(r)
        room -= r.size
    return messages


def _merged(ranges: Sequence[Range]) -> list[Range]:
    merged: list[Range] = []
    for r in sorted(ranges, key=lambda r: r.remote):
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.remote + last.size == r.remote
            and last.local + last.size == r.local
        ):
            merged[-1] = Range(last.remote, last.local, last.size + r.size)
        else:
            merged.append(r)
    return merged


def read_request(
    reply: bytes, epoch: int, transfer: int, region: str, messages: Sequence[Sequence[Range]]
) -> ReadRequest:
    """`TransferError` if there are more pieces than one request can name."""
    pieces = [[(r.remote, r.size) for r in message] for message in messages]
    count = sum(map(len, pieces))
    # 64 KiB are left for all else: the address, the region's name, the seal.
    if count * _MAX_PIECE > MAX_REQUEST - 65536 or len(pieces) > 1 << _INDEX_BITS:
        raise TransferError(f"ucx: {count} scattered ranges are too many for one read")
    return ReadRequest(reply, epoch, transfer, region, pieces)


def check_request(request: ReadRequest, nbytes: int, host: bool) -> None:
    """`TransferError` unless all pieces lie inside a region of `nbytes` and are grouped as `plan`
    groups them."""
    if not 0 <= request.transfer <= transfer_mask() or not request.messages:
        raise TransferError("ucx: a request names no range")
    for message in request.messages:
        for offset, size in message:
            if offset < 0 or size <= 0 or size > nbytes - offset:
                raise TransferError(
                    f"ucx: {size} bytes at {offset} exceed a region of {nbytes} bytes"
                )
        if len(message) != 1 and not (host and 0 < sum(size for _, size in message) <= BUNDLE):
            raise TransferError("ucx: a request bundles ranges that do not belong together")


class Epochs:
    """Of the next connection to each peer that has none. Most peers never come back, so those whose
    connections ended longest ago share one epoch, the latest of theirs."""

    def __init__(self) -> None:
        self._next: dict[bytes, int] = {}
        self._others = 0

    def __len__(self) -> int:
        return len(self._next)

    def begin(self, peer: bytes, epoch: int) -> int:
        """The epoch of a new connection, if the peer says that it is `epoch` at least."""
        return max(epoch, self._next.pop(peer, self._others))

    def ended(self, peer: bytes, epoch: int) -> None:
        """A connection of that epoch has ended."""
        self._next[peer] = epoch + 1
        if len(self._next) > _MAX_PEERS:
            self._others = max(self._others, self._next.pop(next(iter(self._next))))
