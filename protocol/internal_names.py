"""Names of a fleet's processes in messages: for the log, and for no client."""

from __future__ import annotations

import re

_NAMES = (
    (re.compile(r"(?:master )?\b(?:https?|tcp|ipc)://[^\s'\",;)]*[^\s'\",;:.)]"), "a worker"),
    (re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|\b[\w.-]*[A-Za-z0-9]):\d{2,5}\b"), "a worker"),
    (re.compile(r"\binstance [0-9a-f]{8,64}\b"), "an instance"),
)


def without_names(message: str) -> str:
    """`message` without URLs, addresses and ids of processes."""
    for pattern, instead in _NAMES:
        message = pattern.sub(instead, message)
    return message
