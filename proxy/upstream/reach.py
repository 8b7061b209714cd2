"""Whether anything answers at an address, be it only its kernel."""

from __future__ import annotations

import asyncio
import errno
import socket
from urllib.parse import urlsplit

from proxy.upstream.unhurried import unhurried

UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
"""What the system says of a host that it gets no answer from."""


async def reachable(url: str, timeout_s: float) -> bool:
    """False if neither a connection nor a refusal comes: a host that is off or cut off. A process
    that is stopped or busy is reachable, as its kernel takes connections for it."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        connecting = asyncio.open_connection(parts.hostname, port)
        _, writer = await unhurried(connecting, timeout_s)
    except TimeoutError:
        return False
    except OSError as error:
        return isinstance(error, socket.gaierror) or error.errno not in UNREACHABLE
    writer.transport.abort()
    return True
