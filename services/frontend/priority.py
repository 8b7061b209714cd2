"""Which priority a request may state: the same rule for rendered and for relayed requests."""

from __future__ import annotations

from protocol.errors import InvalidRequest


def check_priority(priority: float, lowest: int) -> None:
    """`InvalidRequest` if a request would run before more others than `lowest` allows."""
    if priority < lowest:
        raise InvalidRequest(
            f"priority must be at least {lowest} here, not {priority}: lower values "
            "run earlier, and --min-priority says how low they may be",
            param="priority",
        )
