"""ZMQ connections that only those who have the fleet key can make: CurveZMQ, and its encryption.

All servers of a fleet have one pair of keys, derived from the fleet key. CurveZMQ never sends a
server's public key: a client proves in its first message that it knows it (RFC 26), so here it is
as secret as the fleet key, and nothing need be known of clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils import z85

from protocol.errors import ConfigError
from protocol.fleet_key import FleetKey


@dataclass(frozen=True)
class Curve:
    """The keys of a fleet's servers, Z85."""

    public: bytes = field(repr=False)
    secret: bytes = field(repr=False)

    @staticmethod
    def of(key: FleetKey) -> Curve | None:
        """None without a fleet key. `ConfigError` if this libzmq has no CURVE."""
        if not key:
            return None
        if not zmq.has("curve"):
            raise ConfigError("--fleet-key: the installed libzmq is built without CURVE")
        secret = z85.encode(key.derived("zmq server"))
        return Curve(zmq.curve_public(secret), secret)

    def serve(self, socket: zmq.Socket[Any]) -> None:
        """Before `socket` is bound: take connections of the fleet alone."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)

    def connect(self, socket: zmq.Socket[Any]) -> None:
        """Before `socket` is connected: speak to servers of the fleet alone."""
        # A pair for each connection: servers do not look at who the client is.
        public, secret = zmq.curve_keypair()
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
