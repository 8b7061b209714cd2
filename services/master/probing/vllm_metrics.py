"""A worker's load and block size as vLLM's `/metrics` tells them."""

from __future__ import annotations

import math
import re
from collections import defaultdict

from protocol.registry import Load
from services.master.fleet.added_workers import MAX_BLOCK_SIZE, WorkerMetrics

MAX_BYTES = 2 << 20  # vLLM's own are about 100 kB
_MOST = float(1 << 40)
_NAMES = frozenset(
    f"vllm:{name}"
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                 "cache_config_info")
)  # fmt: skip
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def metrics_from(text: bytes) -> WorkerMetrics | None:
    """None if this is not vLLM's text, or it does not say how many requests run. What is no number
    is left out."""
    values: dict[str, list[float]] = defaultdict(list)
    for raw in text[:MAX_BYTES].split(b"\n"):
        if raw.startswith(b"vllm:"):
            _read(raw.decode("utf-8", "replace"), values)
    if not values["vllm:num_requests_running"]:
        return None
    # vLLM has a sample for each data-parallel rank: counts add up, the usage is a mean.
    total = int(sum(values["blocks"]))
    usage = values["vllm:kv_cache_usage_perc"]
    used = min(1.0, sum(usage) / len(usage)) if usage else 1.0
    load = Load(
        queued=int(sum(values["vllm:num_requests_waiting"])),
        running=int(sum(values["vllm:num_requests_running"])),
        free_blocks=int(total * (1.0 - used)),
        # How many are free is not known then; 0 in all says that nothing is told of blocks.
        total_blocks=total if usage else 0,
    )
    size = int(max(values["block_size"], default=0.0))
    return WorkerMetrics(load, size if size <= MAX_BLOCK_SIZE else 0)


def _read(line: str, values: dict[str, list[float]]) -> None:
    name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
    if name not in _NAMES:
        return
    # From the right: a label's value may hold a brace too.
    labels, _, number = rest.rpartition("}") if "{" in line else ("", "", rest)
    # A timestamp may follow the value.
    value = _number(number.strip().split(" ")[0])
    if name == "vllm:cache_config_info":
        found = dict(_LABEL.findall(labels))
        told = {
            "blocks": found.get("num_gpu_blocks", ""),
            "block_size": found.get("block_size", ""),
        }
        for key, words in told.items():
            _add(values, key, _number(words))
    else:
        _add(values, name, value)


def _add(values: dict[str, list[float]], name: str, value: float | None) -> None:
    if value is not None:
        values[name].append(value)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0.0 <= value <= _MOST else None
