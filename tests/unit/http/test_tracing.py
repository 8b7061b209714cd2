"""Which requests are traced, and what a record's spans say."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.request_record import RequestRecord, traced
from protocol.server_options import TraceOptions
from services.http.records import make_tracer, traced_headers
from services.http.tracing import Tracer

GIVEN = f"00-{'ab' * 16}-{'cd' * 8}-01"


def test_without_the_flag_nothing_is_imported() -> None:
    program = "import sys, proxy.__main__; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
    assert make_tracer(TraceOptions(), "proxy") is None


@pytest.mark.parametrize(
    ("share", "headers", "is_traced"),
    [
        (1.0, {}, True),
        (0.0, {}, False),
        (0.0, {"traceparent": GIVEN}, True),
        (1.0, {"traceparent": GIVEN[:-1] + "0"}, False),
        (0.0, {"traceparent": "nonsense"}, False),
    ],
)
async def test_a_trace_that_comes_decides_and_chance_decides_otherwise(
    share: float, headers: dict[str, str], is_traced: bool, tmp_path: Path
) -> None:
    tracer, record = Tracer("proxy", str(tmp_path / "spans"), share), RequestRecord(kept=False)
    record.trace_headers = headers
    tracer.begin(record)
    assert (record.trace_headers != headers) == is_traced
    assert record.kept == is_traced
    tracer.end(record)
    tracer.close()
    assert bool((tmp_path / "spans").read_text()) == is_traced


async def test_an_error_is_the_spans_status(tmp_path: Path) -> None:
    tracer, record = Tracer("proxy", str(tmp_path / "spans"), 1.0), RequestRecord("/v1/x", "id")
    tracer.begin(record)
    with record.during("place"):
        pass
    record.status, record.outcome = 503, "no_worker"
    tracer.end(record)
    tracer.close()
    place, request = map(json.loads, (tmp_path / "spans").read_text().splitlines())
    assert request["status"] == {"status_code": "ERROR", "description": "no_worker"}
    assert place["parent_id"] == request["context"]["span_id"]


async def test_workers_get_the_span_of_the_proxy_in_place_of_the_clients(tmp_path: Path) -> None:
    record = RequestRecord(kept=False)
    assert traced({"a": "b"}, record) == {"a": "b"}
    record.trace_headers = {"traceparent": GIVEN, "tracestate": "vendor=1"}
    tracer = Tracer("proxy", str(tmp_path / "spans"), 0.0)
    tracer.begin(record)
    told = traced({}, record)
    assert told["traceparent"].startswith(GIVEN[:36]) and told["traceparent"] != GIVEN
    assert told["tracestate"] == "vendor=1"
    tracer.end(record)
    tracer.close()
    context = json.loads((tmp_path / "spans").read_text())["context"]
    assert "vendor" in context["trace_state"]


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({}, {}),
        ({"tracestate": "vendor=1"}, {}),
        ({"traceparent": GIVEN}, {"traceparent": GIVEN}),
        ({"traceparent": GIVEN, "tracestate": "vendor=1"}, None),
        ({"traceparent": "01" + GIVEN[2:] + "-more"}, None),
        ({"traceparent": "ff" + GIVEN[2:]}, {}),
        ({"traceparent": GIVEN + "\r\nx: y"}, {}),
        ({"traceparent": GIVEN.upper()}, {}),
        ({"traceparent": GIVEN, "tracestate": "v\xe9"}, {"traceparent": GIVEN}),
        ({"traceparent": GIVEN, "tracestate": "v" * 513}, {"traceparent": GIVEN}),
    ],
)
def test_a_clients_trace_goes_on_if_it_has_the_form_of_one(
    given: dict[str, str], passed: dict[str, str] | None
) -> None:
    """None: all of it."""
    headers = {name.encode(): value.encode("latin-1") for name, value in given.items()}
    assert traced_headers(headers) == (given if passed is None else passed)


async def test_a_stage_is_linked_to_those_that_made_its_tensors(tmp_path: Path) -> None:
    """The calls may begin in any order."""
    tracer, record = Tracer("proxy", str(tmp_path / "spans"), 1.0), RequestRecord()
    tracer.begin(record)
    for at, stage in enumerate(("decode", "encode", "prefill", "encode")):
        record.begin(stage, record.start + at, "http://w")
    tracer.end(record)
    tracer.close()
    lines = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    own = {line["context"]["span_id"]: line["name"] for line in lines}
    links = {
        line["name"]: [own[link["context"]["span_id"]] for link in line["links"]] for line in lines
    }
    assert links["prefill"] == ["encode", "encode"] and links["decode"] == ["prefill"]
    assert links["encode"] == []


async def test_spans_are_made_together_a_moment_later(tmp_path: Path) -> None:
    """With the ids that calls have brought; those that wait are bounded."""
    tracer = Tracer("proxy", str(tmp_path / "spans"), 1.0)
    told = []
    for number in range(100):
        record = RequestRecord("/v1/x", str(number))
        record.trace_headers = {"traceparent": GIVEN} if number % 2 else {}
        tracer.begin(record)
        told.append(record.trace_headers["traceparent"].split("-")[1:3])
        call = record.begin("decode", record.start, "http://w")
        tracer.end(record)
        call.end = record.ended_at + 5.0  # it went on: its span ends with the request's
        assert len(tracer._ended) == (number + 1) % 16
    await asyncio.sleep(0.8)
    assert not tracer._ended
    tracer.close()
    spans = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    requests = {s["attributes"]["triptych.request_id"]: s for s in spans if s["name"] != "decode"}
    for number, (trace_id, span_id) in enumerate(told):
        found = requests[str(number)]
        assert found["context"]["trace_id"] == f"0x{trace_id}"
        assert found["context"]["span_id"] == f"0x{span_id}"
        assert found["parent_id"] == (f"0x{GIVEN.split('-')[2]}" if number % 2 else None)
    for part in spans:
        if part["name"] == "decode":
            owner = next(
                s for s in requests.values() if s["context"]["span_id"] == part["parent_id"]
            )
            assert part["end_time"] <= owner["end_time"]
    assert len({s["context"]["span_id"] for s in spans}) == 200


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--trace-to: .*none"):
        Tracer("proxy", str(tmp_path / "none" / "spans"), 1.0)
