"""What an engine takes of its machine: a device, a dtype, the blocks of its KV pool."""

from __future__ import annotations

import logging

import msgspec
import torch

from connectors.host_memory import available_bytes
from protocol.errors import ConfigError
from services.engine.attention.kv_cache import DTYPES
from services.engine.attention.kv_codes import FP8, INT8
from services.engine.config import EngineConfig
from services.engine.model.cpu_linear import computes_linear

logger = logging.getLogger(__name__)
_CPU_KV_BYTES = 256 << 20
_GPU_SPARE_BYTES = 256 << 20  # for kernels that libraries load when a request first needs them
_KV_DTYPES = {
    "auto": "",
    "int8": INT8,
    "int8_per_token_head": INT8,
    "fp8": FP8,
    "fp8_e4m3": FP8,
    "fp8_per_token_head": FP8,
}  # some by the names that vLLM has for it


def resolved(config: EngineConfig) -> EngineConfig:
    """`config` with `auto` replaced: a GPU if there is one; bfloat16 there and on a CPU that has
    instructions or a kernel for it, float32 on another."""
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_device(device)
    dtype = config.dtype
    if dtype == "auto":
        dtype = "bfloat16" if device != "cpu" or computes_bfloat16(config) else "float32"
        logger.info("--dtype auto: %s on %s", dtype, device)
    if dtype not in DTYPES:
        raise ConfigError(f"--dtype: '{dtype}' is not one of {', '.join(DTYPES)}")
    kv_codes_of(config)
    return msgspec.structs.replace(config, device=device, dtype=dtype)


def kv_codes_of(config: EngineConfig) -> str:
    """The codes that the KV cache is to hold, "" for elements of the model's own type."""
    if config.kv_cache_dtype not in _KV_DTYPES:
        raise ConfigError(
            f"--kv-cache-dtype: '{config.kv_cache_dtype}' is not one of {', '.join(_KV_DTYPES)}"
        )
    return _KV_DTYPES[config.kv_cache_dtype]


def computes_bfloat16(config: EngineConfig) -> bool:
    """Whether this CPU multiplies bfloat16 well: by instructions of its own (AVX-512 or AMX) or by
    our kernel, which computes linear layers that are packed."""
    able = torch.cpu.get_capabilities()
    if able.get("avx512_bf16") or able.get("amx_bf16"):
        return True
    return config.weight_layout != "plain" and not config.quantization and computes_linear()


def _check_device(device: str) -> None:
    """`ConfigError` if it is a GPU that is not here."""
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--device: {device} cannot be used: PyTorch finds no CUDA driver or GPU here"
        )
    if (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device: there is no {device}: {torch.cuda.device_count()} GPUs found")


def activate(device: str) -> None:
    """Make a GPU the one that libraries use which are not told of another, as UCX. `cuda` without a
    number is the one that is current anyway."""
    found = torch.device(device)
    if found.type == "cuda" and found.index is not None:
        torch.cuda.set_device(found)


def memory_gauges(device: str) -> dict[str, float]:
    """Bytes of a GPU's memory, for metrics; none of a CPU's, which the process metrics tell of."""
    if torch.device(device).type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"gpu_memory_used_bytes": total - free, "gpu_memory_total_bytes": total}


def num_blocks_of(config: EngineConfig, block_bytes: int, activations: int = 0) -> int:
    """Blocks of the KV pool on a device whose weights are loaded and whose steps take
    `activations` bytes more. `ConfigError` if there are none, or they need more than is free."""
    num_blocks = config.num_blocks or _pool_bytes(config, activations) // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"KV cache holds no block of {block_bytes} bytes: raise --kv-cache-memory-bytes or, on "
            "a GPU, --gpu-memory-utilization, or lower --block-size"
        )
    needed, free = num_blocks * block_bytes, available_bytes()
    # A GPU refuses what it does not have. Host memory is granted, and the process killed later.
    if config.device == "cpu" and needed > free:
        raise ConfigError(
            f"KV cache of {needed} bytes does not fit into the {free} bytes of free memory: "
            "lower --kv-cache-memory-bytes or --num-gpu-blocks-override"
        )
    return num_blocks


def _pool_bytes(config: EngineConfig, activations: int) -> int:
    if config.kv_cache_bytes:
        return config.kv_cache_bytes
    if config.device == "cpu":
        # Other workers may be about to take as much of the same memory.
        return min(_CPU_KV_BYTES, available_bytes() // 8)
    free, total = torch.cuda.mem_get_info(config.device)
    used = total - free + activations
    left = max(0, int(total * config.gpu_memory_utilization) - used - _GPU_SPARE_BYTES)
    logger.info(
        "%d of %d bytes of %s are taken, %d of them by steps; the KV cache gets %d",
        used, total, config.device, activations, left,
    )  # fmt: skip
    return left
