"""Builds the connectors a configuration names."""

from __future__ import annotations

import uuid
from pathlib import Path

from connectors.base import ECConnector, KVConnector
from connectors.config import ECConfig, KVConfig
from connectors.ec.files import FileEC, FileStoreOptions
from connectors.ec.local import LocalEC
from connectors.kv.consumer import REGION
from connectors.kv.local import LocalKV
from connectors.kv.pull import PullKV, PullOptions
from connectors.peers import Identity
from connectors.side_channel import SideClient, SideServer
from connectors.transports.shm import ShmTransport


def make_ec(config: ECConfig) -> ECConnector:
    if config.transport == "local":
        return LocalEC(config.ec_buffer_size, config.load_timeout_s)
    options = FileStoreOptions(
        root=Path(config.path),
        capacity=config.ec_buffer_size,
        load_timeout_s=config.load_timeout_s,
        checksum=config.transport == "shared_storage",
        temporary=config.transport == "shm",
    )
    return FileEC(options)


def make_kv(config: KVConfig, compatibility: str, device: str) -> KVConnector:
    """`compatibility` names everything two peers must agree on (model, layout, dtype, version)."""
    if config.transport == "local":
        return LocalKV(device)
    instance_id = uuid.uuid4().hex
    transport = ShmTransport(Path(config.path), instance_id)
    identity = Identity(instance_id, {REGION: compatibility})
    server = SideServer(config.host, config.port)
    options = PullOptions(config.lease_s, config.timeout_s)
    return PullKV(transport, server, SideClient(), identity, options)
