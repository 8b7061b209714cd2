"""Handshakes: a producer's region becomes readable once it has proved to be a fitting peer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from connectors.messages import Hello, Refused, Welcome
from connectors.side_client import Address, SideClient
from connectors.side_server import Sender, SideServer
from connectors.transports.base import Transfer, Transport
from protocol.errors import IncompatiblePeer, TransferError, TransferTimeout


@dataclass(frozen=True)
class Identity:
    """How this engine introduces itself. By region: all that both sides must share (model, dtype,
    layout, block size, version) for the bytes of one to make sense to the other. What it `serves`
    peers may read; what it `expects` it reads itself."""

    instance_id: str
    serves: dict[str, str] = field(default_factory=dict)
    expects: dict[str, str] = field(default_factory=dict)


class Greeter:
    """The producer's side of handshakes."""

    def __init__(self, server: SideServer, transport: Transport, identity: Identity) -> None:
        self._transport = transport
        self._identity = identity
        self._server = server
        server.on(Hello, self._hello)

    def _hello(self, message: Hello, consumer: Sender) -> None:
        ours = self._identity.serves.get(message.region)
        wanted = (message.transport, message.compatibility)
        # Of a region that is not served `ours` is None, which no consumer's words equal.
        if wanted == (self._transport.name, ours):
            description = self._transport.describe(message.region)
            self._server.introduce(consumer, message.region)
            consumer(Welcome(message.query, self._identity.instance_id, description))
            return
        offered = f"no region '{message.region[:64]}'"
        if ours is not None:
            offered = f"region '{message.region}' over {self._transport.name} with layout '{ours}'"
        reason = (
            f"instance {self._identity.instance_id} offers {offered}, instance "
            f"{message.instance_id} needs it over {message.transport} with layout "
            f"'{message.compatibility}'"
        )
        consumer(Refused(message.query, reason))


@dataclass
class _Handshake:
    """A question to the instance at an address, and what has come of it."""

    query: int  # number of the question, which its answer repeats
    connection: int | None  # number of the connection that it was begun on
    region: str  # memory of the peer that is to be read
    deadline: float  # by the client's `listened_s`
    producer: str | None = None  # instance that answered, None until it has
    connecting: Transfer | None = None  # what the region's memory still waits for
    error: TransferError | None = None  # why it failed, kept for those who ask later

    @property
    def peer(self) -> str | None:
        """The producer's instance id once its region can be read."""
        return self.producer if self.connecting is None else None

    def advance(self) -> None:
        """See whether the region can be read, or why it never will be."""
        try:
            if self.connecting is not None and self.connecting.poll():
                self.connecting = None
        except TransferError as error:
            self.connecting, self.error = None, error

    def cancel(self) -> None:
        if self.connecting is not None:
            self.connecting.cancel()


class Peers:
    """The consumer's side: one handshake per producer and region, again if its connection broke."""

    def __init__(
        self, client: SideClient, transport: Transport, identity: Identity, timeout_s: float
    ) -> None:
        self._client = client
        self._transport = transport
        self._identity = identity
        self._timeout = timeout_s
        self._queries = itertools.count()
        self._handshakes: dict[tuple[Address, str], _Handshake] = {}
        client.on(Welcome, self._welcome)
        client.on(Refused, self._refused)

    def ready(self, address: Address, region: str) -> str | None:
        """The producer's instance id once its region can be read, None until then.

        Raises `IncompatiblePeer`, `TransferTimeout` or what connecting raised; the next call
        tries again.
        """
        key = (address, region)
        handshake = self._handshakes.get(key)
        if handshake is not None and handshake.peer is not None and self._interrupted(address, key):
            self.lost(address)
            handshake = None
        if handshake is None:
            handshake = self._handshakes[key] = self._begin(address, region)
        handshake.advance()
        if handshake.error is None and handshake.peer is None:
            if self._client.broken(address):
                handshake.error = TransferError(
                    f"the side channel cannot connect to {address[0]}:{address[1]}"
                )
            elif self._client.listened_s > self._deadline(address, handshake):
                handshake.error = TransferTimeout(
                    f"the peer at {address[0]}:{address[1]} did not answer the handshake"
                )
        if handshake.error is not None:
            handshake.cancel()
            del self._handshakes[key]
            if all(known != address for known, _ in self._handshakes):
                # Otherwise what is read of another region would lose its connection too.
                self._client.forget(address)
            raise handshake.error
        return handshake.peer

    def _deadline(self, address: Address, handshake: _Handshake) -> float:
        """A producer that computes answers after its step."""
        computing, _ = self._client.computing(address)
        return max(handshake.deadline, computing + self._timeout)

    def _interrupted(self, address: Address, key: tuple[Address, str]) -> bool:
        """Whether another process may be there by now."""
        return self._client.connection_number(address) != self._handshakes[key].connection

    def known(self, region: str) -> list[Address]:
        """Those whose region has been asked for."""
        return [address for address, name in self._handshakes if name == region]

    def _begin(self, address: Address, region: str) -> _Handshake:
        query = next(self._queries)
        hello = Hello(
            query,
            self._identity.instance_id,
            self._transport.name,
            region,
            self._identity.expects.get(region, ""),
        )
        sent = self._client.send(address, hello)
        deadline = self._client.listened_s + self._timeout
        # Only sending makes a connection, so it is looked at afterwards.
        handshake = _Handshake(query, self._client.connection_number(address), region, deadline)
        if not sent:
            handshake.error = TransferError(
                f"the side channel cannot send to {address[0]}:{address[1]}"
            )
        return handshake

    def _find(self, address: Address, query: int) -> _Handshake | None:
        for (peer, _), handshake in self._handshakes.items():
            if peer == address and handshake.query == query:
                return handshake
        return None

    def _welcome(self, address: Address, message: Welcome) -> None:
        handshake = self._find(address, message.query)
        if handshake is None:
            # Its answer came after it was given up.
            return
        try:
            handshake.connecting = self._transport.connect(
                message.instance_id, handshake.region, message.description
            )
            handshake.producer = message.instance_id
        except TransferError as error:
            handshake.error = error

    def _refused(self, address: Address, message: Refused) -> None:
        handshake = self._find(address, message.query)
        if handshake is not None:
            handshake.error = IncompatiblePeer(message.reason)

    def poll(self) -> None:
        """Give up connections that have been broken for long."""
        for address in self._client.gone():
            self.lost(address)

    def lost(self, address: Address) -> None:
        """A producer is gone, with all addresses that it is known by: the next one there must
        introduce itself again."""
        here = [key for key in self._handshakes if key[0] == address]
        gone = {self._end(key) for key in here} - {None}
        for key in [key for key, known in self._handshakes.items() if known.producer in gone]:
            self._end(key)
        for peer in gone:
            self._transport.disconnect(str(peer))
        self._client.forget(address)

    def _end(self, key: tuple[Address, str]) -> str | None:
        """Forget a handshake; the instance that had answered it, if one had."""
        handshake = self._handshakes.pop(key)
        handshake.cancel()
        return handshake.producer
