"""Names of a fleet's processes in messages: for the log, and for no client."""

from __future__ import annotations

import re
from typing import Any

import msgspec

WORKER, ADDRESS = "a worker", "an address"
_LONGEST = 1 << 14  # characters of a message: it may quote a client's whole request
# Each run of characters is gone through once: a message may be what a client made up.
_ADDRESSES = (
    re.compile(r"(?:master )?\b(?:https?|tcp|ipc)://[^\s'\",;)]*[^\s'\",;:.)]"),
    # A host has a letter or a dot: 3:15 is a place in a text.
    re.compile(
        r"(?:\[[0-9a-fA-F:.%]+\]|(?<![\w.-])(?=[\w.-]*[A-Za-z.])[\w.-]*[A-Za-z0-9]):\d{2,5}\b"
    ),
)
_INSTANCE = re.compile(r"\binstance [0-9a-f]{8,64}\b")


def without_names(message: str, address: str = WORKER) -> str:
    """`message` without URLs, addresses and ids of processes. `address` stands for the first two:
    those in a worker's word of a request may be the client's own."""
    if len(message) > _LONGEST:
        message = message[:_LONGEST] + "…"
    for pattern in _ADDRESSES:
        message = pattern.sub(address, message)
    return _INSTANCE.sub("an instance", message)


def body_without_names(body: bytes) -> bytes:
    """A worker's answer to a request that it refuses, JSON or text, without these in any string;
    as it is if there are none."""
    try:
        said = msgspec.json.decode(body)
        told = _without(said)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body.decode(errors="replace")
        found = without_names(text, ADDRESS)
        return body if found == text else found.encode()
    return body if told == said else msgspec.json.encode(told)


def _without(said: Any) -> Any:
    if isinstance(said, str):
        return without_names(said, ADDRESS)
    if isinstance(said, list):
        return [_without(one) for one in said]
    if isinstance(said, dict):
        return {without_names(name, ADDRESS): _without(one) for name, one in said.items()}
    return said
