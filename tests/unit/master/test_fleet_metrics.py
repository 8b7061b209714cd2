"""Metrics of many workers on one page."""

import asyncio
import contextlib

import pytest
from prometheus_client.parser import text_string_to_metric_families

from protocol.registry import InstanceInfo
from services.master.config import MasterConfig
from services.master.fleet.registry import Registry
from services.master.probing import fleet_metrics

# Its import opens files, which a master that has asked a worker before need not do again.
from services.master.probing.client import ProbeClient
from services.master.probing.fleet_metrics import FleetMetrics, WorkerPage, merged
from tests.support.shortage import no_files_left

OURS = b"""# HELP triptych:tokens_total Tokens, so far.
# TYPE triptych:tokens_total counter
triptych:tokens_total{role="decode"} 7.0
# HELP triptych:wait_seconds Seconds.
# TYPE triptych:wait_seconds histogram
triptych:wait_seconds_bucket{le="1.0",role="decode"} 2.0
triptych:wait_seconds_bucket{le="+Inf",role="decode"} 3.0
triptych:wait_seconds_count{role="decode"} 3.0
triptych:wait_seconds_sum{role="decode"} 4.5
process_open_fds 9.0
"""
VLLM = b"""# HELP vllm:num_requests_running Requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a} b"} 1.0
process_open_fds 5.0
"""


def page(url: str, text: bytes | None, role: str = "prefill", model: str = "m") -> WorkerPage:
    return WorkerPage({"worker": url, "role": role, "model": model}, text)


def samples(text: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_each_sample_names_its_worker_and_keeps_its_labels() -> None:
    text = merged([page("http://a:1", OURS), page("http://b:2", VLLM, "decode")])
    found = samples(text)
    assert found["triptych:tokens_total"] == [
        ({"worker": "http://a:1", "model": "m", "role": "decode"}, 7.0)
    ]
    assert found["vllm:num_requests_running"] == [
        (
            {
                "worker": "http://b:2", "role": "decode", "model": "m", "engine": "0",
                "model_name": "a} b",
            },
            1.0,
        )
    ]  # fmt: skip
    assert {(labels["worker"], value) for labels, value in found["process_open_fds"]} == {
        ("http://a:1", 9.0), ("http://b:2", 5.0)
    }  # fmt: skip


def test_a_family_is_described_once_and_stays_together() -> None:
    text = merged([page("http://a:1", OURS), page("http://b:2", OURS)])
    assert text.count(b"# TYPE triptych:wait_seconds histogram") == 1
    (family,) = [
        family
        for family in text_string_to_metric_families(text.decode())
        if family.name == "triptych:wait_seconds"
    ]
    assert len(family.samples) == 8 and family.type == "histogram"


def test_one_that_said_nothing_is_on_the_page() -> None:
    found = samples(merged([page("http://a:1", OURS), page("http://b:2", None)]))
    told = {labels["worker"]: value for labels, value in found["triptych_master:worker_metrics"]}
    assert told == {"http://a:1": 1.0, "http://b:2": 0.0}


def test_what_is_no_metric_does_not_break_the_page() -> None:
    text = b"# EOF\n\n<html>\n# TYPE\nx{ 1\ny\nup 1\n{} 5\n"
    found = samples(merged([page('http://a:1/"\\', text)]))
    assert found.keys() == {"up", "triptych_master:worker_metrics"}
    assert found["up"][0][0]["worker"] == 'http://a:1/"\\'


def test_without_workers_there_is_a_page() -> None:
    assert samples(merged([])) == {}


async def test_a_worker_that_could_not_be_asked_costs_no_other_its_place() -> None:
    config = MasterConfig()
    registry = Registry(config)
    registry.register(InstanceInfo("w", "decode", "http://127.0.0.1:9", "m"), 0.0)
    async with ProbeClient(1.0):
        await asyncio.to_thread(len, ())  # the first thread's import opens files too
    with no_files_left():
        page = await FleetMetrics(registry, config).page()
    ((labels, value),) = samples(page)["triptych_master:worker_metrics"]
    assert (labels["worker"], value) == ("http://127.0.0.1:9", 0.0)


async def test_pages_that_are_too_large_together_are_bounded_while_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third answer finds no room in the middle, and its bytes are room for a small one."""
    monkeypatch.setattr(fleet_metrics, "_MAX_BYTES", 250_000)
    line, gone, others = b"x 1\n", asyncio.Event(), asyncio.Event()

    async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100004\r\n\r\n" + line * 25_000)
        closed = asyncio.ensure_future(reader.read())
        going_on = asyncio.ensure_future(others.wait())
        await asyncio.wait({closed, going_on}, return_when=asyncio.FIRST_COMPLETED)
        if closed.done():
            gone.set()
        else:
            writer.write(line)
        writer.close()

    async def small(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await gone.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n" + line)
        writer.close()

    registry, config = Registry(MasterConfig()), MasterConfig(probe_timeout=60.0)
    async with contextlib.AsyncExitStack() as stack:
        for number, serve in enumerate((large, large, large, small)):
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            stack.callback(server.close)
            url = "http://{}:{}".format(*server.sockets[0].getsockname())
            registry.register(InstanceInfo(f"w{number}", "decode", url, "m"), 0.0)
        making = asyncio.create_task(FleetMetrics(registry, config).page())
        async with asyncio.timeout(20):
            await gone.wait()
        others.set()
        told = samples(await making)["triptych_master:worker_metrics"]
    assert sorted(value for _, value in told) == [0.0, 1.0, 1.0, 1.0]
    assert told[3][1] == 1.0
