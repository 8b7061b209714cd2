"""Builds the connectors that a configuration names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from connectors.base import Changed, ECConnector, no_listener
from connectors.config import TRANSPORTS, ECConfig, KVConfig
from connectors.ec.arena import ArenaEC, ArenaOptions
from connectors.ec.files import FileEC, FileStoreOptions
from connectors.ec.local import LocalEC
from connectors.kv.base import KVConnector
from connectors.kv.local import LocalKV
from connectors.kv.pull import PullKV, PullOptions
from connectors.node import Node, NodeOptions, Readable
from connectors.transports.base import Transport
from connectors.transports.files import FilesTransport
from connectors.transports.shm import ShmTransport
from connectors.transports.staged import StagedTransport
from protocol.curve import Curve
from protocol.errors import ConfigError
from protocol.plugins import find_class

_WITHOUT_FOLDER = ("nixl", "ucx")


class Connectors:
    """The connectors of one engine. Both use one transport and one side channel if their
    configurations agree on all that these depend on, and the KV one does not ask for a port of its
    own."""

    def __init__(
        self, ec: ECConfig, kv: KVConfig, device: str = "cpu", curve: Curve | None = None
    ) -> None:
        """KV pools will lie on `device`. With `curve`, peers are those of the fleet alone."""
        self._curve = curve
        self._ec = ec
        self._kv = kv
        # The wrapper stages only what its transport does not take. With buffer_device cuda there is
        # none: a transport that cannot hand over a GPU's memory refuses it at the start.
        on_device = torch.device(device).type != "cpu"
        self._all_staged = kv.staged or (on_device and kv.buffer_device == "cpu")
        self._staged = self._all_staged or (on_device and kv.buffer_device == "")
        self._nodes: dict[tuple[_NodeKind, int], Node] = {}

    def make_ec(
        self,
        compatibility: str,
        *,
        produces: bool,
        consumes: bool | None = None,
        changed: Changed = no_listener,
    ) -> ECConnector:
        """`compatibility` names everything two peers must agree on (model, dtype, version). Whether
        this engine stores embeddings, and whether it needs those of others (None: unless it stores
        some), is for the role to say where it is `ec_both`. `changed` is told what is stored."""
        config = self._ec
        if config.transport == "local":
            return LocalEC(config.ec_buffer_size, config.load_timeout_s, config.lease_s, changed)
        if config.transport == "shared_storage":
            return FileEC(
                FileStoreOptions(
                    root=Path(config.path),
                    capacity=config.ec_buffer_size,
                    load_timeout_s=config.load_timeout_s,
                    lease_s=config.lease_s,
                    load_unchecked=config.load_unchecked,
                ),
                changed,
            )
        consumes = not produces if consumes is None else consumes
        if config.role != "ec_both":
            produces, consumes = config.role == "ec_producer", config.role == "ec_consumer"
        options = ArenaOptions(
            capacity=config.ec_buffer_size if produces else 0,
            landing=config.landing_size if consumes else 0,
            device="cpu",
            lease_s=config.lease_s,
            load_timeout_s=config.load_timeout_s,
            folder=Path(config.path),
            peers=config.peers,
        )
        return ArenaEC(self._node(config), compatibility, options, changed)

    def ec_kind(self, compatibility: str) -> str:
        """What two workers must share to hand over embeddings: `compatibility` and the transport;
        "" if this one keeps its own."""
        transport = self._ec.transport
        return "" if transport == "local" else f"{compatibility}:{transport}"

    def make_kv(self, compatibility: str, device: str) -> KVConnector:
        """`compatibility` as for EC, to which the transport is added; the pool lies on `device`."""
        config = self._kv
        if config.transport == "local":
            return LocalKV(device)
        options = PullOptions(config.lease_s, config.timeout_s)
        shared = f"{compatibility}:{config.transport}"
        return PullKV(self._node(config), shared, device, options)

    @property
    def sockets(self) -> list[Readable]:
        """Readable when a connector's `poll` has something to do after an `arm`."""
        return [one for node in self._nodes.values() for one in node.sockets]

    def arm(self) -> bool:
        """To be called before waiting for `sockets`; False if there is something to do now."""
        # Those behind one that has something to do stay unarmed: the engine does not wait then.
        return all(node.arm() for node in self._nodes.values())

    @contextlib.contextmanager
    def meanwhile(self) -> Iterator[None]:
        """While this is entered bytes move and peers are sent them by themselves; no connector may
        be called."""
        with contextlib.ExitStack() as stack:
            for node in self._nodes.values():
                stack.enter_context(node.meanwhile())
            yield

    def _node(self, config: ECConfig | KVConfig) -> Node:
        kind = _NodeKind.of(config)
        for (known, _), node in self._nodes.items():
            if known == kind and not config.port:
                return node

        def make(instance_id: str) -> Transport:
            made = _transport(config, instance_id)
            staged = self._staged
            return StagedTransport(made, everything=self._all_staged) if staged else made

        taken = [(known.host, port) for known, port in self._nodes]
        if config.port and (config.host, config.port) in taken:
            raise ConfigError(
                f"--ec-transfer-config ec_port and --kv-transfer-config kv_port are both "
                f"{config.port}: give one of them another, or none"
            )
        options = NodeOptions(config.host, config.port, config.timeout_s, self._curve)
        node = self._nodes[kind, config.port] = Node(make, options)
        return node


@dataclass(frozen=True)
class _NodeKind:
    """What a node takes of a configuration, beside its port."""

    transport: str
    host: str
    path: str
    timeout_s: float

    @classmethod
    def of(cls, config: ECConfig | KVConfig) -> Self:
        # These use no folder: EC lists its producers in one, which is nothing to KV.
        path = "" if config.transport in _WITHOUT_FOLDER else config.path
        return cls(config.transport, config.host, path, config.timeout_s)


def _transport(config: ECConfig | KVConfig, instance_id: str) -> Transport:
    """NIXL, UCX and those of other packages are loaded only where they are used."""
    if config.transport == "nixl":
        from connectors.transports.nixl import NixlTransport

        return NixlTransport(instance_id, config.timeout_s)
    if config.transport == "ucx":
        from connectors.transports.ucx import UcxTransport

        return UcxTransport(config.host, read_timeout_s=config.timeout_s)
    if config.transport == "shared_storage":
        return FilesTransport(Path(config.path))
    if config.transport == "shm":
        return ShmTransport(Path(config.path), instance_id)
    kind = find_class(TRANSPORTS, config.transport, Transport)
    if kind is None:
        raise ConfigError(f"no package offers the transport '{config.transport}'")
    return kind(instance_id, config)  # type: ignore[no-any-return]
