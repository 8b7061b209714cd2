"""Our metrics under vLLM's names and labels as well, so that its dashboards and autoscalers work.

Names, types and labels are those of vLLM 0.33 (vllm/v1/metrics/loggers.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

PREFIX = "vllm:"
_ENGINE = "0"
_OURS = frozenset({"role", "model"})
# Another worker goes on with it, and counts its success there.
_HANDED_OVER = "handed_over"
_OF_REQUESTS = (
    *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_inference_time_seconds", "request_time_per_output_token_seconds"),
    *("request_prompt_tokens", "request_generation_tokens"),
)

OF_WORKERS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "num_requests_running": ("num_requests_running",),
        "num_requests_waiting": ("num_requests_waiting",),
        "kv_cache_usage_perc": ("kv_cache_usage_perc",),
        "prompt_tokens": ("prompt_tokens", "prefix_cache_queries"),
        "cached_tokens": ("prompt_tokens_cached", "prefix_cache_hits"),
        "generation_tokens": ("generation_tokens",),
        "preemptions": ("num_preemptions",),
        "mm_cache_queries": ("mm_cache_queries",),
        "mm_cache_hits": ("mm_cache_hits",),
        "request_success": ("request_success",),
        "time_to_first_token_seconds": ("time_to_first_token_seconds",),
        "inter_token_latency_seconds": ("inter_token_latency_seconds",),
        "e2e_request_latency_seconds": ("e2e_request_latency_seconds",),
        **{name: (name,) for name in _OF_REQUESTS},
    }
)
OF_PROXIES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "requests_in_flight": ("num_requests_running",),
        "requests_waiting": ("num_requests_waiting",),
        "time_to_first_token_seconds": ("time_to_first_token_seconds",),
        "inter_token_latency_seconds": ("inter_token_latency_seconds",),
        "e2e_request_latency_seconds": ("e2e_request_latency_seconds",),
        "request_time_per_output_event_seconds": ("request_time_per_output_token_seconds",),
    }
)


class VllmAliases(Collector):
    """Metrics of `registry` whose names begin with `prefix`, again under vLLM's. `names`: of our
    metrics, without the prefix, those of vLLM's."""

    def __init__(
        self,
        registry: CollectorRegistry,
        prefix: str,
        names: Mapping[str, Sequence[str]],
        model: str,
    ) -> None:
        self._registry, self._prefix, self._names = registry, prefix, names
        self._labels = {"model_name": model, "engine": _ENGINE}

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            ours = family.name.removeprefix(self._prefix)
            for name in self._names.get(ours, ()):
                yield self._alias(family, PREFIX + name)

    def render(self) -> bytes:
        """Prometheus text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def _alias(self, family: Metric, name: str) -> Metric:
        found = Metric(name, family.documentation, family.type)
        for sample in family.samples:
            suffix = sample.name.removeprefix(family.name)
            labels = {k: v for k, v in sample.labels.items() if k not in _OURS}
            if suffix != "_created" and labels.get("finished_reason") != _HANDED_OVER:
                found.add_sample(name + suffix, {**self._labels, **labels}, sample.value)
        return found
