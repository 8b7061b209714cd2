"""What a serving benchmark says in the end: its table, its files, its exit status."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from benchmarks.serve.__main__ import main
from benchmarks.serve.report import save, table
from tests.support.benchmark_runs import SHORT, measure
from tests.support.fake_openai import FakeOpenAI


async def test_table_and_json(tmp_path: Path) -> None:
    report = await measure(
        FakeOpenAI(),
        *(*SHORT, "--max-concurrency", "3", "--request-rate", "1000"),
        *("--goodput", "ttft:60000", "--metric-percentiles", "50,99.9"),
        *("--save-result", "--result-dir", str(tmp_path), "--metadata", "version=1"),
        *("--json", str(tmp_path / "deep" / "result.json")),
    )
    lines = table(report).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[1] == "Successful requests:                     6         "
    assert lines[4] == "Request rate configured (RPS):           1000.00   "
    labels = [line.partition(":")[0] for line in lines if ":" in line]
    assert labels[:13] == [
        "Successful requests",
        "Failed requests",
        "Maximum request concurrency",
        "Request rate configured (RPS)",
        "Benchmark duration (s)",
        "Total input tokens",
        "Total generated tokens",
        "Request throughput (req/s)",
        "Request goodput (req/s)",
        "Output token throughput (tok/s)",
        "Peak output token throughput (tok/s)",
        "Peak concurrent requests",
        "Total token throughput (tok/s)",
    ]
    assert labels[13:17] == [
        "Mean TTFT (ms)",
        "Median TTFT (ms)",
        "P50 TTFT (ms)",
        "P99.9 TTFT (ms)",
    ]
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    assert lines[-1] == "=" * 50
    first, second = save(report)
    assert first.read_text() == second.read_text()
    assert re.fullmatch(r"openai-chat-1000.0qps-concurrency3-dir-\d{8}-\d{6}.json", second.name)
    saved = json.loads(first.read_text())
    assert saved["completed"] == 6
    assert saved["version"] == "1"
    assert saved["p99.9_e2el_ms"] >= saved["median_e2el_ms"] > 0
    assert "ttfts" not in saved


@pytest.mark.parametrize(("refused", "status"), [(5, 0), (6, 1)])
async def test_exit_status(refused: int, status: int, capfd: pytest.CaptureFixture[str]) -> None:
    async with FakeOpenAI(refuse=frozenset(range(refused))).serve() as url:
        argv = ["--base-url", url, "--disable-tqdm", *SHORT]
        assert await asyncio.to_thread(main, argv) == status
    assert f"{refused} x HTTP 503: busy" in capfd.readouterr().out


def test_exit_status_without_a_server_or_a_dataset(tmp_path: Path) -> None:
    nowhere = ["--base-url", "http://127.0.0.1:9"]
    assert main(nowhere) == 1
    missing = ["--dataset-name", "custom", "--dataset-path", str(tmp_path / "no"), "--model", "m"]
    assert main([*nowhere, *missing]) == 2
