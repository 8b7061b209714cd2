"""What /metrics of a worker explains."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from connectors.meter import BUCKETS_S, Meter, TransferStats
from protocol.types import FinishReason, GenerateRequest, RequestOutput, SamplingParams
from services.engine.messages import Query, Statistics, decode_event, encode
from services.engine.reports import answer, histograms_of
from services.worker.engine_metrics import ENGINE_COUNTERS, ENGINE_GAUGES, ENGINE_HISTOGRAMS
from services.worker.metrics import WorkerMetrics
from tests.conftest import ModelDir
from tests.support.conversations import asking, picture
from tests.support.engines import engine, request_of, run

Shown = list[tuple[str, dict[str, str], float]]


def samples(text: bytes) -> Shown:
    """Name, labels and value of what a worker shows, but for what it says of its process."""
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name.startswith("triptych:") and not sample.name.endswith("_created")
    ]


def test_every_figure_of_an_engine_is_explained(model_dir: ModelDir, tmp_path: Path) -> None:
    size = 1 << 20
    running = engine(
        model_dir("qwen2_5_vl"), kv_host_bytes=size, kv_disk_bytes=size, kv_disk_path=str(tmp_path)
    )
    try:
        of_gpus = {name for name in ENGINE_GAUGES if name.startswith("gpu_")}
        assert set(running.gauges()) == set(ENGINE_GAUGES) - of_gpus
        assert set(running.counters()) == set(ENGINE_COUNTERS)
        assert set(histograms_of(running)) == set(ENGINE_HISTOGRAMS)
    finally:
        running.close()


@pytest.mark.parametrize(
    ("reason", "hands_over", "shown"),
    [
        ("length", False, "length"),
        ("length", True, "handed_over"),
        ("stop", True, "stop"),
        ("error", False, ""),
    ],
)
def test_a_request_succeeds_where_it_ends_and_an_error_is_no_success(
    reason: FinishReason, hands_over: bool, shown: str
) -> None:
    metrics = WorkerMetrics("prefill", "m")
    with metrics.timed(GenerateRequest("r", [1], SamplingParams()), hands_over=hands_over) as line:
        line.observe([RequestOutput("r", 0, [1], None, reason)])
    text = metrics.render(None).decode()
    counted = [line for line in text.splitlines() if line.startswith("triptych:request_success_t")]
    labels = f'{{finished_reason="{shown}",model="m",role="prefill"}}'
    assert counted == ([f"triptych:request_success_total{labels} 1.0"] if shown else [])
    ended = 'triptych:e2e_request_latency_seconds_count{model="m",role="prefill"} 1.0' in text
    assert ended == (shown in ("length", "stop"))


def test_all_that_a_worker_counts_says_its_role_and_model() -> None:
    metrics = WorkerMetrics("decode", "m")
    with metrics.timed(GenerateRequest("r", [1], SamplingParams())) as line:
        line.observe([RequestOutput("r", 0, [1], None, "stop")])
    metrics.error("overloaded")
    moved = TransferStats("kv", "shm", buckets=[0] * (len(BUCKETS_S) + 1))
    snapshot = Statistics(1, {"kv_blocks_free": 3.0}, {"steps": 2.0}, [moved])
    shown = samples(metrics.render(snapshot))
    assert len(shown) > 30
    for name, labels, _ in shown:
        assert {"role": "decode", "model": "m"}.items() <= labels.items(), name


def test_the_bandwidth_of_transfers_is_bytes_by_the_seconds_in_which_they_moved() -> None:
    meter = Meter("kv", "shm")
    meter.moved(6_000_000, 5.0, 2.0)  # three seconds it waited for prefill
    meter.moved(2_000_000, 2.0)
    shown = WorkerMetrics("decode", "m").render(Statistics(1, {}, {}, [meter.snapshot()]))
    found = {name: value for name, _, value in samples(shown)}
    moved, copying = (f"triptych:transfer_{what}_total" for what in ("bytes", "copy_seconds"))
    assert found[moved] / found[copying] == 2_000_000
    assert found["triptych:transfer_seconds_sum"] == 7.0


def test_an_engine_times_the_stages_of_its_requests(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    running = engine(path)
    try:
        generate, encode_it = request_of(
            path, asking(picture(1), "What?"), "r", max_tokens=5, ignore_eos=True
        )
        run(running, [(generate, encode_it)])
        snapshot = decode_event(encode(answer(running, Query(1))))
    finally:
        running.close()
    assert isinstance(snapshot, Statistics)
    metrics = WorkerMetrics("pdfusion", "m", vllm_names=True)
    shown = metrics.render(snapshot)
    found = {name: value for name, _, value in samples(shown)}
    for name in ENGINE_HISTOGRAMS:
        expected = 0 if name == "request_kv_wait_seconds" else 1
        assert found[f"triptych:{name}_count"] == expected, name
    assert found["triptych:request_prompt_tokens_sum"] == len(generate.token_ids)
    assert found["triptych:request_prompt_tokens_sum"] == found["triptych:prompt_tokens_total"]
    assert found["triptych:request_generation_tokens_sum"] == 5
    parts = [found[f"triptych:request_{part}_time_seconds_sum"] for part in ("prefill", "decode")]
    assert sum(parts) == pytest.approx(found["triptych:request_inference_time_seconds_sum"])
    assert min(parts) > 0
    per_token = found["triptych:request_time_per_output_token_seconds_sum"]
    assert per_token == pytest.approx(parts[1] / 4)
