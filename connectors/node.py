"""What the connectors of one engine share towards peers: a transport, both ends of the side
channel, and handshakes."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import zmq

from connectors.peers import Greeter, Identity, Peers
from connectors.side_client import Address, SideClient
from connectors.side_server import SideServer
from connectors.transports.background_poller import BackgroundPoller
from connectors.transports.base import Transport
from protocol.curve import Curve

_LOOK_S = 0.1  # how often peers that ask are looked for while a step computes
_PAUSE = 0.25  # of the timeout: the most that one long step of our own counts as a peer's silence
Readable = zmq.Socket[bytes] | int
"""A socket or a file descriptor."""


@dataclass(frozen=True)
class NodeOptions:
    """The side channel listens on `host`:`port` (0: any free port), which peers must reach;
    `timeout_s` bounds handshakes. `curve`: both ends of it are for the fleet alone."""

    host: str
    port: int
    timeout_s: float
    curve: Curve | None = None


class Node:
    """One engine as its peers see it. `make` builds its transport for an instance id."""

    def __init__(self, make: Callable[[str], Transport], options: NodeOptions) -> None:
        self.instance_id = uuid.uuid4().hex
        self.transport = make(self.instance_id)
        self.server = SideServer(options.host, options.port, options.curve)
        self.client = SideClient(options.curve, options.timeout_s * _PAUSE)
        self._identity = Identity(self.instance_id)
        self._greeter = Greeter(self.server, self.transport, self._identity)
        self.peers = Peers(self.client, self.transport, self._identity, options.timeout_s)
        self._users: set[str] = set()
        self._began = 0.0
        # Its thread sleeps instead of waiting for the socket, which outside its turns is the engine
        # thread's.
        self._speaker = BackgroundPoller(self._say_computing, lambda: time.sleep(_LOOK_S))

    def share(self, region: str, compatibility: str) -> None:
        """Let peers read a region, which is allocated before the next `poll`; `compatibility` names
        all that both sides must agree on."""
        self._identity.serves[region] = compatibility
        self.expect(region, compatibility)

    def expect(self, region: str, compatibility: str) -> None:
        """What peers must say of a region of theirs that is read from here."""
        self._identity.expects[region] = compatibility
        self._users.add(region)

    def compatibility(self, region: str) -> str:
        return self._identity.expects[region]

    @property
    def address(self) -> Address:
        """As peers know it."""
        return self.server.host, self.server.port

    @property
    def regions(self) -> set[str]:
        """What connectors of this engine read or serve."""
        return set(self._identity.expects)

    def poll(self) -> None:
        """Take what peers say, serve them, move bytes."""
        self.server.poll()
        self.client.poll()
        self.peers.poll()
        self.transport.poll()

    @contextlib.contextmanager
    def meanwhile(self) -> Iterator[None]:
        """While the engine computes a step, and does not call this node: peers that ask hear that
        it does, and bytes move as far as the transport can do that by itself."""
        self._began = time.monotonic()
        with self._speaker.running(), self.transport.meanwhile():
            yield

    def _say_computing(self) -> None:
        self.server.say_computing(time.monotonic() - self._began)

    @property
    def refused(self) -> int:
        """Messages of peers that made no sense."""
        return self.server.refused + self.client.refused + self.transport.refused

    @property
    def sockets(self) -> list[Readable]:
        """Readable when `poll` has something to do after an `arm`."""
        return [self.server.socket, *self.client.sockets, *self.transport.descriptors]

    def arm(self) -> bool:
        """To be called before waiting for `sockets`; False if there is something to do now."""
        return not self.server.waiting and self.transport.arm()

    def leave(self, region: str) -> None:
        """The connector of a region needs this node no more; the last one closes it: until then
        each may have something to say to its peers. Idempotent."""
        self._users.discard(region)
        if not self._users:
            self.close()

    def close(self) -> None:
        """End every connection and release the transport; idempotent."""
        # First, as its thread uses the server's socket.
        self._speaker.close()
        self.server.close()
        self.client.close()
        self.transport.close()
