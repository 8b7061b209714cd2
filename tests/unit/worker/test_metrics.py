"""What /metrics of a worker explains."""

from pathlib import Path

import pytest

from protocol.types import FinishReason, RequestOutput
from services.worker.engine_metrics import ENGINE_COUNTERS, ENGINE_GAUGES
from services.worker.metrics import WorkerMetrics
from tests.conftest import ModelDir
from tests.support.engines import engine


def test_every_figure_of_an_engine_is_explained(model_dir: ModelDir, tmp_path: Path) -> None:
    size = 1 << 20
    running = engine(
        model_dir("qwen2_5_vl"), kv_host_bytes=size, kv_disk_bytes=size, kv_disk_path=str(tmp_path)
    )
    try:
        of_gpus = {name for name in ENGINE_GAUGES if name.startswith("gpu_")}
        assert set(running.gauges()) == set(ENGINE_GAUGES) - of_gpus
        assert set(running.counters()) == set(ENGINE_COUNTERS)
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
    metrics = WorkerMetrics("prefill")
    metrics.timeline(hands_over=hands_over).observe([RequestOutput("r", 0, [1], None, reason)])
    text = metrics.render(None).decode()
    counted = [line for line in text.splitlines() if line.startswith("triptych:request_success_t")]
    labels = f'{{finished_reason="{shown}",role="prefill"}}'
    assert counted == ([f"triptych:request_success_total{labels} 1.0"] if shown else [])
    ended = 'triptych:e2e_request_latency_seconds_count{role="prefill"} 1.0' in text
    assert ended == (shown in ("length", "stop"))
