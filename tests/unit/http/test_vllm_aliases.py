"""Metrics under vLLM's names."""

from prometheus_client.parser import text_string_to_metric_families

from protocol.histogram import Histogram
from protocol.types import GenerateRequest, RequestOutput, SamplingParams
from proxy.fleet.fleet import Fleet
from proxy.metrics import ProxyMetrics
from services.engine.messages import Statistics
from services.worker.engine_metrics import ENGINE_HISTOGRAMS
from services.worker.metrics import WorkerMetrics

# vLLM 0.33's, of each request.
OF_REQUESTS = [
    "vllm:" + name
    for name in (
        "request_queue_time_seconds", "request_prefill_time_seconds",
        "request_decode_time_seconds", "request_inference_time_seconds",
        "request_time_per_output_token_seconds", "request_prompt_tokens",
        "request_generation_tokens", "time_to_first_token_seconds",
        "inter_token_latency_seconds", "e2e_request_latency_seconds",
    )
]  # fmt: skip
LABELS = {"model_name": "m", "engine": "0"}


def values(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(text.decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("vllm:")
    }


def test_a_workers_metrics_have_vllms_names_and_labels() -> None:
    metrics = WorkerMetrics("decode", "m", vllm_names=True)
    with metrics.timed(GenerateRequest("a", [1], SamplingParams())) as line:
        line.observe([RequestOutput("a", token_ids=[1], finish_reason="stop")])
    handed = RequestOutput("b", token_ids=[1], finish_reason="length")
    with metrics.timed(GenerateRequest("b", [1], SamplingParams()), hands_over=True) as line:
        line.observe([handed])
    gauges = {"num_requests_running": 3.0, "kv_cache_usage_perc": 0.5}
    histograms = dict.fromkeys(ENGINE_HISTOGRAMS, Histogram.of((1.0,)))
    snapshot = Statistics(1, gauges, {"prompt_tokens": 7.0}, histograms=histograms)
    found = values(metrics.render(snapshot))
    named = frozenset(LABELS.items())
    assert found["vllm:num_requests_running", named] == 3.0
    assert found["vllm:kv_cache_usage_perc", named] == 0.5
    assert found["vllm:prompt_tokens_total", named] == 7.0
    assert found["vllm:prefix_cache_queries_total", named] == 7.0
    assert found["vllm:time_to_first_token_seconds_count", named] == 2.0
    assert all(f"{name}_count" in {key for key, _ in found} for name in OF_REQUESTS)
    success = {key: value for key, value in found.items() if "success" in key[0]}
    stopped = frozenset({**LABELS, "finished_reason": "stop"}.items())
    assert success == {("vllm:request_success_total", stopped): 1.0}


def test_they_are_there_only_if_they_are_asked_for() -> None:
    assert not values(WorkerMetrics("decode").render(None))
    assert not values(ProxyMetrics(Fleet()).render())


def test_a_proxy_tells_of_whole_requests() -> None:
    metrics = ProxyMetrics(Fleet(), vllm_model="m")
    metrics.e2e.observe(0.5)
    found = values(metrics.render())
    named = frozenset(LABELS.items())
    assert found["vllm:e2e_request_latency_seconds_count", named] == 1.0
    assert found["vllm:num_requests_waiting", named] == 0.0
