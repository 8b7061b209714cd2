"""The fuzzer: its requests come again, and what it calls a defect is one."""

import dataclasses
import email

import pytest
from google.protobuf.message import DecodeError

from benchmarks.fuzz.__main__ import _growth
from benchmarks.fuzz.aftermath import Size
from benchmarks.fuzz.cases import Case, Target, case
from benchmarks.fuzz.client import _complete, _wrong
from benchmarks.fuzz.over_grpc import KSERVE, RTP, Door, call
from benchmarks.fuzz.samples import SAMPLES
from benchmarks.fuzz.values import FORM_TYPE, Raw, as_form, as_json, as_msgpack
from services.grpc.proto.kserve_pb2 import InferRequest

TARGETS = [Target("worker", "127.0.0.1", 1, [(path, "POST") for path in SAMPLES], {})]
SENT = Case(0, TARGETS[0], b"", cut=False, mangled=False, told="")


def test_a_request_comes_again_by_its_seed_and_number() -> None:
    drawn = [case(7, number, TARGETS) for number in range(200)]
    assert drawn == [case(7, number, TARGETS) for number in range(200)]
    assert len({one.sent for one in drawn}) > 190
    assert drawn[0].sent != case(8, 0, TARGETS).sent
    assert any(one.cut for one in drawn) and any(not one.mangled for one in drawn)


def test_a_call_over_grpc_comes_again_and_is_still_a_message_mostly() -> None:
    doors = [Door(name, "h:1", service, ()) for name, service in (("k", KSERVE), ("r", RTP))]
    drawn = [call(7, number, doors) for number in range(300)]
    assert drawn == [call(7, number, doors) for number in range(300)]
    assert len({one.data for one in drawn}) > 150
    assert drawn[0].data != call(8, 0, doors).data
    assert any(len(one.data) > 1 for one in drawn) and any(not one.data for one in drawn)
    infers = [data for one in drawn if one.method == "ModelInfer" for data in one.data]
    parsed = [data for data in infers if is_message(data)]
    assert len(infers) > len(parsed) > 0.7 * len(infers)


def is_message(data: bytes) -> bool:
    try:
        return bool(InferRequest.FromString(data).ByteSize() >= 0)
    except DecodeError:
        return False


def test_no_worker_is_told_to_drain() -> None:
    routes = [("/drain", "POST")]
    worker, master = (Target(name, "h", 1, routes, {}) for name in ("worker", "master"))
    assert not any("POST" in case(1, number, [worker]).told for number in range(50))
    assert any("POST" in case(1, number, [master]).told for number in range(50))


def answer(status: int, body: bytes, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


ERROR = b'{"error":{"message":"m","code":"c"}}'


@pytest.mark.parametrize(
    ("statuses", "data", "ended", "defect"),
    [
        ([200], answer(200, b"{}"), True, ""),
        ([400], answer(400, ERROR), True, ""),
        ([503], answer(503, ERROR), True, ""),
        ([500], answer(500, ERROR), True, "HTTP [500]"),
        ([502], answer(502, ERROR), True, "HTTP [502]"),
        ([200], answer(200, b'data: {"error":{"code":"internal_error"}}'), True, "HTTP [200]"),
        ([200], answer(200, b'errors{code="internal_error"} 1', b"text/plain"), True, ""),
        ([400], answer(400, b"Invalid HTTP request.", b"text/plain"), True, "not an error's form"),
        ([404], answer(404, b'{"detail":"Not Found"}'), True, "not an error's form"),
        ([], b"", True, "no answer"),
        ([200], b"HTTP/1.1 200 OK\r\n", False, "no end"),
    ],
)
def test_what_is_a_defect(statuses: list[int], data: bytes, ended: bool, defect: str) -> None:
    said = _wrong(SENT, statuses, data, ended)
    assert said.startswith(defect) and bool(said) == bool(defect)


def test_an_answer_is_whole_by_its_framing() -> None:
    whole = answer(200, b"{}")
    assert _complete(bytearray(whole)) and not _complete(bytearray(whole[:-1]))
    again = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert not _complete(bytearray(again)) and _complete(bytearray(again + whole))
    assert _complete(bytearray(whole[:-1]), b"HEAD / HTTP/1.1")
    chunks = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"
    assert not _complete(bytearray(chunks)) and _complete(bytearray(chunks + b"0\r\n\r\n"))


def test_values_that_no_encoder_writes() -> None:
    value = {"a": [Raw(b"NaN"), Raw(b'"\\ud800"')], "b": 10**30}
    assert as_json(value) == b'{"a":[NaN,"\\ud800"],"b":%d}' % 10**30
    assert b"NaN" in as_msgpack(value)


def test_a_form_has_its_fields_and_files() -> None:
    message = email.message_from_bytes(
        b"Content-Type: " + FORM_TYPE.encode() + b"\r\n\r\n" + as_form({"a": "x", "f": b"RIFF"})
    )
    found = [
        (part.get_param("name", header="content-disposition"), part.get_filename(),
         part.get_payload(decode=True))
        for part in message.walk() if not part.is_multipart()
    ]  # fmt: skip
    assert found == [("a", None, b"x"), ("f", "a.wav", b"RIFF")]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/audio/transcriptions", "/"])
def test_a_sample_is_sent_as_its_route_takes_it(path: str) -> None:
    target = Target("worker", "h", 1, [(path, "POST")], {})
    sent = [case(3, number, [target]) for number in range(40)]
    plain = [one for one in sent if "0 values changed" in one.told and not one.mangled]
    heads = {one.sent.partition(b"\r\n\r\n")[0].split(b"content-type: ")[1][:20] for one in plain}
    assert heads <= {b"multipart/form-data;", b"application/json\r\nx-"} and heads


@pytest.mark.parametrize("field", ["memory", "files", "threads", "tasks"])
def test_growth_is_told_of_each_thing_that_grows(field: str) -> None:
    before = Size(memory=100 << 20, files=50, threads=9, tasks=12)
    larger = dataclasses.replace(before, **{field: getattr(before, field) * 2})
    (same, *_), (grown, *_) = _growth([before], [before]), _growth([before] * 2, [before, larger])
    assert (same.ours, grown.ours) == (0, 1)
