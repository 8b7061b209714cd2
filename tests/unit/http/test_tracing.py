"""Which requests are traced, and what a record's spans say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.request_record import RequestRecord, traced
from protocol.server_options import TraceOptions
from proxy.relay.request import ClientRequest
from services.http.traces import make_tracer
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
def test_a_trace_that_comes_decides_and_chance_decides_otherwise(
    share: float, headers: dict[str, str], is_traced: bool, tmp_path: Path
) -> None:
    tracer, record = Tracer("proxy", str(tmp_path / "spans"), share), RequestRecord(kept=False)
    tracer.begin(headers, record)
    assert bool(record.traceparent) == is_traced
    assert record.kept == is_traced
    tracer.end(record)
    tracer.close()
    assert bool((tmp_path / "spans").read_text()) == is_traced


def test_an_error_is_the_spans_status(tmp_path: Path) -> None:
    tracer, record = Tracer("proxy", str(tmp_path / "spans"), 1.0), RequestRecord("/v1/x", "id")
    tracer.begin({}, record)
    with record.during("place"):
        pass
    record.status, record.outcome = 503, "no_worker"
    tracer.end(record)
    tracer.close()
    place, request = map(json.loads, (tmp_path / "spans").read_text().splitlines())
    assert request["status"] == {"status_code": "ERROR", "description": "no_worker"}
    assert place["parent_id"] == request["context"]["span_id"]


def test_workers_get_the_span_of_the_proxy_in_place_of_the_clients() -> None:
    record = RequestRecord(kept=False)
    assert traced({"a": "b"}, record) == {"a": "b"}
    record.traceparent = f"00-{'ab' * 16}-{'ee' * 8}-01"
    assert traced({}, record) == {"traceparent": record.traceparent}
    request = ClientRequest(ClientRequest.CHAT, {b"traceparent": GIVEN.encode()}, b"")
    request.trace("")
    assert request.fields().count(b"traceparent: " + GIVEN.encode()) == 1
    request.trace(record.traceparent)
    assert request.fields().count(b"traceparent") == 1
    assert record.traceparent.encode() in request.fields()


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--trace-to: .*none"):
        Tracer("proxy", str(tmp_path / "none" / "spans"), 1.0)
