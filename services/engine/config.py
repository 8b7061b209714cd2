"""What an engine is made of; sent by its worker as JSON when the process starts."""

from __future__ import annotations

from typing import Literal

import msgspec

from connectors.config import ECConfig, KVConfig
from services.membership.config import EventsConfig

Part = Literal["language", "vision"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`parts` are the parts of the model to load. Sizes in tokens, blocks or bytes as named.

    `num_blocks` 0 sizes the KV pool from `kv_cache_bytes`, or on a GPU, where that is 0 too, from
    `gpu_memory_utilization` of the device's memory. `events` None: caches say nothing.
    """

    model_dir: str
    model: str
    revision: str
    parts: tuple[Part, ...]
    dtype: str = "auto"
    device: str = "auto"
    block_size: int = 16
    num_blocks: int = 0
    kv_cache_bytes: int = 0
    gpu_memory_utilization: float = 0.9
    max_model_len: int = 4096
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_encoder_patches: int = 16384
    max_media_pixels: int = 64_000_000
    embedding_cache_bytes: int = 256 << 20
    prefix_caching: bool = True
    eos_token_ids: tuple[int, ...] = ()
    seed: int = 0
    num_threads: int = 0
    ec: ECConfig = ECConfig()
    kv: KVConfig = KVConfig()
    events: EventsConfig | None = None
