"""Profiles of GPU workers, reckoned from data sheets by a roofline: none of this was run on a GPU.

A prompt is bound by arithmetic (2 FLOP per weight and token), a decode step by memory (all weights
once, and the KV of its requests), a transfer by the network. Where a step is bound by both, their
times are added: no overlap is counted on. The shares of the peaks that are reached are assumptions:
half of the arithmetic, 70 % of the memory's and 80 % of the network's bandwidth.

Sources: NVIDIA's data sheets of H200 and A100 (dense BF16, bandwidth and size of the memory) and of
ConnectX-7 and ConnectX-6 (400 and 200 Gbit/s, one for each GPU); Qwen2.5-VL's configuration files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from benchmarks.simulate.profile import Profile, calibrated
from benchmarks.simulate.prompts import PATCHES_PER_TOKEN
from services.mock.timing import Timing

_COMPUTE, _MEMORY, _NETWORK = 0.5, 0.7, 0.8  # shares of the peaks
_MEMORY_USED = 0.9  # of the device's, by weights and KV
_LAUNCH_MS = 1.0  # of a step, beside its kernels
_ENCODE_BASE_MS = 3.0  # pre-processing's copy and the launch of some 30 layers
_BYTES = 2  # of a BF16


@dataclass(frozen=True)
class Chip:
    """One GPU: dense BF16 FLOP/s, bytes/s of its memory and of its share of the network, bytes."""

    flops: float
    memory_rate: float
    network_rate: float
    memory: float


@dataclass(frozen=True)
class Model:
    """Of a vision-language model: weights of both parts, layers, KV heads, their size, and the
    width of an embedding."""

    language: float  # parameters of the language part
    vision: float  # parameters of the vision part
    layers: int  # layers of the language part
    kv_heads: int  # KV heads of a layer
    head_dim: int  # elements of a head
    width: int  # elements of an embedding

    @property
    def kv_bytes(self) -> int:
        """Of one token, keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_dim * _BYTES


H200 = Chip(989e12, 4.8e12, 50e9, 141e9)
A100 = Chip(312e12, 2.0e12, 25e9, 80e9)
QWEN_7B = Model(7.6e9, 0.67e9, 28, 4, 128, 3584)
QWEN_72B = Model(72.7e9, 0.67e9, 80, 8, 128, 8192)


def roofline(name: str, chip: Chip, model: Model, gpus: int = 1) -> Profile:
    """A worker of `gpus` GPUs that share the language model by tensor parallelism; an encoder has
    one of them compute."""
    flops, rate = gpus * chip.flops * _COMPUTE, gpus * chip.memory_rate * _MEMORY
    token_ms = 2e3 * model.language / flops
    network = chip.network_rate * _NETWORK
    block_size = Profile.block_size
    timing = Timing(
        encode_base_ms=_ENCODE_BASE_MS,
        encode_patch_ms=2e3 * model.vision / (chip.flops * _COMPUTE),
        prefill_base_ms=_LAUNCH_MS,
        prefill_token_ms=token_ms,
        prefill_cached_ms=1e3 * model.kv_bytes / rate,
        decode_base_ms=_LAUNCH_MS + 1e3 * model.language * _BYTES / rate,
        decode_request_ms=token_ms,
        decode_context_ms=1e3 * model.kv_bytes / rate,
        kv_block_ms=1e3 * model.kv_bytes * block_size / (gpus * network),
        ec_token_ms=1e3 * model.width * _BYTES / network,
    )
    weights = (model.language + model.vision) * _BYTES
    tokens = (gpus * chip.memory * _MEMORY_USED - weights) / model.kv_bytes
    blocks = int(tokens / block_size)
    return Profile(
        name, timing, prefill_blocks=blocks, decode_blocks=blocks, step_tokens=8192,
        max_prefill_beside_decode=512, max_running=256, max_patches=16384 * PATCHES_PER_TOKEN,
        row_bytes=model.width * _BYTES, kv_bytes_per_token=model.kv_bytes,
        encoder_bytes=8 << 30, prefill_media_bytes=8 << 30,
    )  # fmt: skip


def h200_7b() -> Profile:
    """Qwen2.5-VL-7B, one H200 a worker."""
    return roofline("h200_7b", H200, QWEN_7B)


def h200_72b() -> Profile:
    """Qwen2.5-VL-72B, four H200 a worker."""
    return roofline("h200_72b", H200, QWEN_72B, 4)


def mixed_7b() -> Profile:
    """Qwen2.5-VL-7B on H200s and, every other worker of a role, A100s. An A100 counts as slower in
    all it does by the ratio of the memories' bandwidths, and keeps as much KV."""
    return replace(h200_7b(), name="mixed_7b", speeds=(1.0, A100.memory_rate / H200.memory_rate))


PROFILES: Mapping[str, Callable[[], Profile]] = MappingProxyType(
    {
        "calibrated": calibrated,
        "h200_7b": h200_7b,
        "h200_72b": h200_72b,
        "mixed_7b": mixed_7b,
    }
)
