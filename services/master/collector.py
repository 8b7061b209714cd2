"""Python's garbage collector, for a process that holds millions of long-lived keys."""

from __future__ import annotations

import gc

_YOUNG = 20_000
_OLDER = 50


def calm() -> None:
    """What is loaded stays, so no collection need look at it again; young objects die by
    reference count, so they are looked at rarely: a placement never waits for a long collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _OLDER, _OLDER)
