"""A question that the master could not ask. It stands apart from the client that raises it, so that
to catch it needs no aiohttp."""

from __future__ import annotations

from protocol.errors import TriptychError


class NotAsked(TriptychError):
    """This process has no files or memory left for a connection, which says nothing of the
    worker."""
