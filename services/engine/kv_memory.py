"""How many KV blocks an engine has room for, what two engines must share to exchange them, and the
tiers below the pool that a configuration asks for."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import torch
from blake3 import blake3

from connectors.tiers.base import TierStore
from connectors.tiers.files import FileStore, disk_bytes
from connectors.tiers.host import HostStore
from protocol.errors import ConfigError
from protocol.keys import canonical_json
from protocol.refs import KVLayout
from services.engine.attention.kv_cache import block_bytes
from services.engine.config import EngineConfig
from services.engine.hardware import num_blocks_of
from services.engine.model.decode_graphs import Capture, bucket_sizes
from services.engine.model.language import LanguageModel
from services.engine.model.memory_profile import Memory, memory_of, step_peak
from services.engine.model.text_encoder import TextEncoder
from services.engine.model.trial import check_positions

_STAGED = 64  # blocks in host memory on their way to files, where no host tier was asked for


def pool_size(
    config: EngineConfig,
    model: LanguageModel | TextEncoder,
    draft: LanguageModel | None,
    capture: Capture | None,
    activations: int,
) -> tuple[int, int]:
    """Blocks of the KV pool, and tokens of the longest request that it has room for."""
    activations += _step_bytes(config, model, capture)
    activations += model.adapters.most_bytes if model.adapters is not None else 0
    layouts = [one.kv_layout(config.block_size) for one in (model, draft) if one is not None]
    num_blocks = num_blocks_of(config, sum(map(block_bytes, layouts)), activations)
    max_model_len = min(config.max_model_len, num_blocks * config.block_size)
    check_positions(model.module, model.config.model_type, max_model_len)
    return num_blocks, max_model_len


def _step_bytes(
    config: EngineConfig, model: LanguageModel | TextEncoder, capture: Capture | None
) -> int:
    """What the largest steps take beside the weights, 0 where it is not measured."""
    memory = profiled(config)
    if memory is None or isinstance(model, TextEncoder):
        return 0
    size, requests = config.block_size, config.max_num_seqs
    taken = step_peak(model, memory, size, config.max_num_batched_tokens, requests)
    if capture is not None:
        # Recordings keep memory of their own, as much as the largest of them takes; draws are not
        # recorded.
        rows = bucket_sizes(requests)[-1]
        taken += step_peak(model, memory, size, rows, rows, samples=False)
    return taken


def profiled(config: EngineConfig) -> Memory | None:
    """What measures steps where the size of the pool depends on it."""
    given = config.num_blocks or config.kv_cache_bytes or "language" not in config.parts
    return None if given else memory_of(config.device)


def kv_compatibility(config: EngineConfig, layout: KVLayout) -> str:
    """What two engines must share for the KV of one to mean anything to the other."""
    form: dict[str, Any] = msgspec.to_builtins(layout)
    # Quantized weights make other KV, in a layout that is the same.
    if config.quantization:
        form["quantization"] = config.quantization
    if layout.dtype != config.dtype:  # codes: of what a model of this type has computed
        form["computed"] = config.dtype
    digest = blake3(canonical_json(form)).hexdigest()[:16]
    return f"{config.model}@{config.revision[:12]}:{digest}"


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
        # Nothing has failed: from here on the caller closes them.
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
