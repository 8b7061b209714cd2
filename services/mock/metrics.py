"""What a mock worker's /metrics shows, in Prometheus' text format: figures and histograms under the
real workers' names; its load under vLLM's, which masters read of workers that do not register."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from protocol.histogram import Histogram
from services.engine.reports import histograms_of
from services.mock.engine import Engine
from services.mock.instance import Instance


def metrics_of(instance: Instance) -> bytes:
    """Prometheus text format, under the real workers' names."""
    shared = f'model="{instance.config.name}",role="{instance.settings.role}"'
    lines = list(histogram_lines(shared, histograms_of(instance.engine)))

    def add(kind: str, name: str, value: float, labels: str = "") -> None:
        label = f"{{{shared}{labels}}}"
        lines.append(f"# TYPE triptych:{name} {kind}\ntriptych:{name}{label} {value}\n")

    for name, value in instance.engine.gauges().items():
        add("gauge", name, value)
    add("gauge", "num_requests_in_flight", instance.in_flight)
    for name, value in instance.engine.counters().items():
        add("counter", f"{name}_total", value)
    for reason, count in sorted(instance.finished.items()):
        add("counter", "request_success_total", count, f',finished_reason="{reason}"')
    for code, count in sorted(instance.errors.items()):
        add("counter", "request_errors_total", count, f',code="{code}"')
    if instance.config.dialect == "openai":
        lines += vllm_lines(instance.engine)
    return "".join(lines).encode()


def histogram_lines(labels: str, histograms: Mapping[str, Histogram]) -> Iterator[str]:
    """`labels`: those of all series, as they stand between braces."""
    for name, series in histograms.items():
        bounds = [*(str(float(bound)) for bound in series.bounds), "+Inf"]
        yield f"# TYPE triptych:{name} histogram\n"
        counts = list(accumulate(series.counts))
        for bound, count in zip(bounds, counts, strict=True):
            yield f'triptych:{name}_bucket{{{labels},le="{bound}"}} {count}\n'
        yield f"triptych:{name}_count{{{labels}}} {counts[-1]}\n"
        yield f"triptych:{name}_sum{{{labels}}} {series.total}\n"


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
