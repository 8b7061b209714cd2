"""Builds the connectors a configuration names."""

from __future__ import annotations

from pathlib import Path

from connectors.base import ECConnector, KVConnector
from connectors.config import ECConfig, KVConfig
from connectors.ec.files import FileEC, FileStoreOptions
from connectors.ec.local import LocalEC
from connectors.kv.local import LocalKV
from connectors.kv.shm import ShmKV, ShmOptions


def make_ec(config: ECConfig) -> ECConnector:
    if config.transport == "local":
        return LocalEC(config.ec_buffer_size, config.load_timeout_s)
    options = FileStoreOptions(
        root=Path(config.path),
        capacity=config.ec_buffer_size,
        load_timeout_s=config.load_timeout_s,
        checksum=config.transport == "shared_storage",
    )
    return FileEC(options)


def make_kv(config: KVConfig, compatibility: str, device: str) -> KVConnector:
    """`compatibility` names everything two peers must agree on (model, layout, dtype, version)."""
    if config.transport == "local":
        return LocalKV(device)
    options = ShmOptions(
        directory=Path(config.path),
        compatibility=compatibility,
        host=config.host,
        port=config.port,
        lease_s=config.lease_s,
    )
    return ShmKV(options)
