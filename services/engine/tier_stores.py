"""The tiers below a KV pool that a configuration asks for."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

from connectors.tiers.base import TierStore
from connectors.tiers.files import FileStore, disk_bytes
from connectors.tiers.host import HostStore
from protocol.errors import ConfigError
from services.engine.config import EngineConfig

_STAGED = 64  # blocks in host memory on their way to files, where no host tier was asked for


def tier_stores(config: EngineConfig, pool: torch.Tensor, compatibility: str) -> list[TierStore]:
    """From the first below `pool` [blocks, elements] on, [] for none; `ConfigError` names the flag
    at fault. Files are written from host memory, which a step never writes to."""
    row_bytes = pool.shape[1] * pool.element_size()
    file_bytes = disk_bytes(row_bytes)
    in_memory, on_disk = config.kv_host_bytes // row_bytes, config.kv_disk_bytes // file_bytes
    _check(config, row_bytes, file_bytes)
    if not in_memory and not on_disk:
        return []
    with contextlib.ExitStack() as opened:
        flag = "--kv-host-memory" if in_memory else "--kv-disk"
        host = HostStore(pool, in_memory or _STAGED, flag)
        opened.callback(host.close)
        stores: list[TierStore] = [host]
        if on_disk:
            path = Path(config.kv_disk_path)
            stores.append(FileStore(path, host.memory, pool, on_disk, compatibility))
        opened.pop_all()
    return stores


def _check(config: EngineConfig, row_bytes: int, file_bytes: int) -> None:
    for flag, nbytes, needed in (
        ("--kv-host-memory", config.kv_host_bytes, row_bytes),
        ("--kv-disk", config.kv_disk_bytes, file_bytes),
    ):
        if 0 < nbytes < needed:
            raise ConfigError(f"{flag}: {nbytes} bytes hold no KV block of {needed} bytes")
        if nbytes and not config.prefix_caching:
            raise ConfigError(f"{flag}: needs --enable-prefix-caching")
    if bool(config.kv_disk_bytes) != bool(config.kv_disk_path):
        raise ConfigError("--kv-disk and --kv-disk-path: either both are given or none")
