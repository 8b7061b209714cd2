"""A question that the master could not ask."""

from __future__ import annotations

from protocol.errors import TriptychError


class NotAsked(TriptychError):
    """This process has no files or memory left for a connection, which says nothing of the
    worker."""
