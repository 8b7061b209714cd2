"""A mock worker's load under vLLM's names, which masters read of workers that do not register."""

from __future__ import annotations

from services.mock.engine import Engine


def vllm_lines(engine: Engine) -> list[str]:
    """Lines of the Prometheus text format."""
    gauges, blocks = engine.gauges(), engine.blocks
    label = f'engine="0",model_name="{engine.settings.model}"'
    running = gauges.get("num_requests_running", 0) + gauges.get("num_items_encoding", 0)
    lines = [
        f"vllm:num_requests_running{{{label}}} {float(running)}\n",
        f"vllm:num_requests_waiting{{{label}}} {float(gauges.get('num_requests_waiting', 0))}\n",
    ]
    if engine.settings.generates:
        sizes = f'block_size="{blocks.block_size}",num_gpu_blocks="{blocks.num_blocks}"'
        lines.append(f"vllm:kv_cache_usage_perc{{{label}}} {blocks.usage}\n")
        lines.append(f'vllm:cache_config_info{{{sizes},engine="0"}} 1.0\n')
    return lines
