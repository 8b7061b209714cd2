"""A question that the master could not ask. Apart from the client that raises it, so that who handles
it need not import aiohttp."""

from __future__ import annotations

from protocol.errors import TriptychError


class NotAsked(TriptychError):
    """This process has no files or memory left for a connection, which says nothing of the
    worker."""
