"""Bytes of relayed requests, as long as a proxy lives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """Bodies only. `received`: from clients; `sent`: to workers, again with each further try.

    Plain numbers, since two are added to for every call; metrics read them when they are asked for.
    """

    received: int = 0
    sent: int = 0
