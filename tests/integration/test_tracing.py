"""A request about a picture, traced through encode, prefill and decode workers."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from PIL import Image

from benchmarks.common.pictures import data_url
from tests.conftest import ModelDir
from tests.support.stack import call, proxy, running

TRACE, PARENT = "5f" * 16, "7a" * 8
ROLES = ("encoder", "prefill", "decode")


class Collector:
    """What is sent over OTLP/HTTP, by name of the process."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(named["service.name"], span) for span in scope.spans]


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def question(picture: str) -> dict[str, Any]:
    parts = [
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "text", "text": "What is this?"},
    ]
    messages = [{"role": "user", "content": parts}]
    return {"messages": messages, "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def test_all_stages_are_in_one_trace_with_the_workers_own_spans_inside(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    file = tmp_path / "spans.jsonl"
    with collecting() as (collector, url), running(model_dir("qwen2_vl")) as stack:
        master = stack.start_plain("services.master", "--trace-to", str(file))
        to_file = ("--trace-to", str(file), "--master-url", master.wait_ready())
        workers = [stack.start(f"services.{role}", *to_file) for role in ROLES]
        for worker in workers:
            worker.wait_ready()
        encode, prefill, decode = ([worker] for worker in workers)
        traced = ("--trace-to", url, "--trace-sample", "0", "--master-url", master.url)
        front = proxy(stack, encode, prefill, decode, *traced)
        body = question(data_url(Image.new("RGB", (64, 64), "red")))
        for flags in ("01", "00"):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
            path = f"{front.url}/v1/chat/completions"
            assert call(path, body, headers=headers)[0] == 200
        assert call(f"{front.url}/v1/chat/completions", body)[0] == 200
        assert stack.stop() == [0] * 5
    spans = {span.name: span for _, span in collector.spans}
    request = spans["proxy /v1/chat/completions"]
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert set(spans) - {request.name} == {"render", "place", "encode", "prefill", "decode"}
    assert len(collector.spans) == len(spans), "only one request was to be traced"
    for span in spans.values():
        assert request.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= request.end_time_unix_nano
    told = {each.key: each.value.int_value for each in request.attributes}
    assert told["gen_ai.usage.output_tokens"] == 4
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    inside = f"0x{request.span_id.hex()}"
    calls = {line["name"] for line in lines if line["parent_id"] == inside}
    assert {name.split()[0] for name in calls} == {"master", "encode", "prefill", "decode"}
    assert {line["context"]["trace_id"] for line in lines} == {f"0x{TRACE}"}
    assert stages_of(lines, "encode") >= {"encode"}
    assert stages_of(lines, "prefill") >= {"transfer embeddings", "prefill"}
    assert stages_of(lines, "decode") == {"transfer KV", "decode"}
    for line in lines:
        assert line["start_time"] <= line["end_time"]


def stages_of(spans: list[dict[str, Any]], role: str) -> set[str]:
    """What the worker of a role says that its engine did, each inside the worker's own span."""
    own = [span for span in spans if span["resource"]["attributes"]["service.name"].endswith(role)]
    calls = {span["context"]["span_id"] for span in own if span["kind"] == "SpanKind.SERVER"}
    return {span["name"] for span in own if span["parent_id"] in calls}


def test_a_relayed_requests_workers_trace_inside_the_proxys_span(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    file = tmp_path / "spans.jsonl"
    traced = ("--trace-to", str(file))
    with running(model_dir("qwen2_vl")) as stack:
        worker = stack.start("services.pdfusion", *traced)
        worker.wait_ready()
        relay = ("--dialect", "openai", "--decode-servers-urls", worker.url)
        front = stack.start_plain("proxy", *relay, "--trace-sample", "0", *traced)
        front.wait_ready()
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        body = question(data_url(Image.new("RGB", (64, 64), "red")))
        path = f"{front.url}/v1/chat/completions"
        assert call(path, body, headers=headers)[0] == 200
        assert stack.stop() == [0] * 2
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    (request,) = [line for line in lines if line["name"].startswith("proxy ")]
    assert request["parent_id"] == f"0x{PARENT}"
    (answered,) = [line for line in lines if line["name"].startswith("pdfusion ")]
    assert answered["parent_id"] == request["context"]["span_id"]
    assert stages_of(lines, "pdfusion") >= {"render", "encode", "prefill", "decode"}
    assert {line["context"]["trace_id"] for line in lines} == {f"0x{TRACE}"}
