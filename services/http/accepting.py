"""Connections are taken while there is room for them; the rest wait in the kernel's queue.

The event loop's own servers go on accepting until no file is left. uvloop then closes every
new connection (libuv's way out of a loop that never rests): clients see a reset instead of a wait.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import select
import socket
import ssl
from collections.abc import Callable, Sized

from services.http.open_files import SPARE, open_now

logger = logging.getLogger(__name__)
BACKLOG = 4096  # the kernel takes net.core.somaxconn if that is less
_AT_ONCE = 16  # in a turn of the loop, which streams under way wait for
_LOOK_S = 0.05  # while there is no room
_SAID_AGAIN_S = 60.0  # a crowd that lasts is logged once a minute


class Room:
    """Client connections that a process may hold at once, over all its servers: `share` of the
    files that the limit leaves. The rest is for connections to workers and masters."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._held: list[Sized] = []
        self.limit = _limit(share)

    def count(self, held: Sized) -> None:
        """Have the connections of one more server counted, which `held` has at any time."""
        self._held.append(held)

    @property
    def left(self) -> int:
        return self.limit - sum(map(len, self._held))


def _limit(share: float) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        # Unlimited; a number all the same, since callers compare and multiply it.
        return 1 << 30
    return max(1, int((soft - open_now() - SPARE) * share))


class Acceptor:
    """Accepts on one listening socket, which its owner closes.

    `connect` makes a protocol for a connection, which its owner counts in `room`. `crowded` is told
    again and again that connections wait for room, and once that they do not.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[], asyncio.BaseProtocol],
        room: Room,
        crowded: Callable[[bool], None] = lambda waiting: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._connect = connect
        self._room = room
        self._crowded = crowded
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0
        # A connection in its TLS handshake has a file already, but no protocol that `room` sees.
        room.count(self._opening)
        # Processes of one proxy share the socket: another may take what woke this one.
        listener.setblocking(False)
        listener.listen(BACKLOG)
        # The loop does not watch the socket in a pause, when it must show whether anybody waits.
        self._arrivals = select.poll()
        self._arrivals.register(listener, select.POLLIN)
        self._loop.add_reader(listener, self._accept)

    def take_waiting(self) -> None:
        """Take the connections that the kernel has made already, as far as there is room: `close`,
        which is to come next, lets the rest be reset."""
        # Room may have come since the pause began.
        if self._timer is not None:
            self._timer.cancel()
        # No more than the kernel's queue has room for: those that come meanwhile without end must
        # not keep the process.
        for _ in range(0, BACKLOG + 1, _AT_ONCE):
            if not self._accept():
                return

    def close(self) -> None:
        """Accept no more; the socket can be closed. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        # The owner may have closed the socket, whose number is -1 then.
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    def _accept(self) -> bool:
        """Take some; whether there may be more that can be taken at once."""
        for _ in range(min(_AT_ONCE, self._room.left)):
            try:
                connection, _ = self._listener.accept()
            # A client that resets before it is accepted leaves nothing to close.
            except ConnectionAbortedError:
                continue
            except (BlockingIOError, InterruptedError):
                return False
            # EMFILE: the connection stays in the kernel's queue, so try again instead of spinning
            # on it.
            except OSError as error:
                self._pause(f"a connection cannot be accepted: {error.strerror or error}")
                return False
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection))
            # The loop holds tasks weakly: without this set one could be collected in its handshake.
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        if self._room.left <= 0:
            self._pause(
                f"{self._room.limit} connections are open, as many as open files (ulimit -n) allow"
            )
            return False
        return True

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._connect, connection, ssl=self._tls)
        except OSError:  # the client has left, or its handshake has failed
            connection.close()

    def _pause(self, why: str) -> None:
        """Looked at again soon: that costs less than being told of each connection that ends."""
        now = self._loop.time()
        if now >= self._quiet_until:
            self._quiet_until = now + _SAID_AGAIN_S
            logger.warning("%s: further connections wait", why)
        # The socket stays readable: its reader would be called in every turn of the loop.
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        if self._room.left > 0:
            self._timer = None
            self._crowded(False)
            self._loop.add_reader(self._listener, self._accept)
            self._accept()
        else:
            self._crowded(bool(self._arrivals.poll(0)))
            self._timer = self._loop.call_later(_LOOK_S, self._look)
