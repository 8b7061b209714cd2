"""Whose request it is, as its first bytes tell."""

from __future__ import annotations

from protocol.openai import CHAT_PATH, COMPLETIONS_PATH

_ROUTES = tuple(
    f"POST {path}{end}".encode() for path in (CHAT_PATH, COMPLETIONS_PATH) for end in " ?"
)
_LONGEST = max(map(len, _ROUTES))


def is_relayed(data: bytes) -> bool | None:
    """Whether a request that begins so is for a relayed route; None if it is too early to tell."""
    if data.startswith(_ROUTES):
        return True
    if len(data) < _LONGEST and any(route.startswith(data) for route in _ROUTES):
        return None
    return False
