"""Messages that would take long to parse are told from long messages, before they are parsed."""

from typing import Any

import pytest

from protocol.errors import InvalidRequest, PayloadTooLarge
from protocol.json_size import MOST_VALUES
from services.grpc.intake import _parsed
from services.grpc.kserve_requests import read
from services.grpc.message_size import MOST_FIELDS, check_message
from services.grpc.proto import kserve_pb2 as kserve
from services.grpc.proto import rtp_pb2 as rtp
from services.grpc.rtp import request_of

_MANY = max(MOST_FIELDS, 1 << 20)


def within(number: int, data: bytes) -> bytes:
    """A field that holds a message."""
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


HEAVY = {
    "inputs": b"\x2a\x00" * _MANY,
    "parameters of an input": within(5, b"\x22\x00" * _MANY),
    "contents of an input": within(5, within(5, b"\x42\x00" * _MANY)),
    "fields that it does not know": b"\x78\x00" * _MANY,
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_message_of_too_many_fields_is_refused_before_it_is_parsed(name: str) -> None:
    class Unparsed:
        DESCRIPTOR = kserve.InferRequest.DESCRIPTOR
        FromString = None

    with pytest.raises(PayloadTooLarge, match=f"more than {MOST_FIELDS} fields"):
        _parsed(HEAVY[name], Unparsed)


def picture() -> Any:
    message = kserve.InferRequest(model_name="m")
    tensor = message.inputs.add(name="image", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"x" * (1 << 22))
    message.raw_input_contents.append(b"\x2a\x00" * (1 << 20))
    return message


def prompt() -> Any:
    return rtp.GenerateInput(token_ids=range(1_000_000))


@pytest.mark.parametrize("make", [picture, prompt])
def test_long_messages_pass(make: Any) -> None:
    message = make()
    assert _parsed(message.SerializeToString(), type(message)) == message


@pytest.mark.parametrize(
    "malformed",
    [b"\x2a", b"\x2a\xff\xff\xff\xff\x7f", b"\xff" * 30, b"\x09\x00", b"\x2a\x7f\x2a", b"\x07"],
)
def test_what_is_malformed_is_for_the_parser_to_find(malformed: bytes) -> None:
    data = within(1, bytes(1 << 20)) + malformed
    check_message(data, kserve.InferRequest.DESCRIPTOR)
    with pytest.raises(InvalidRequest, match="no InferRequest"):
        _parsed(data, kserve.InferRequest)


def test_parameters_in_json_are_bounded_together() -> None:
    each = 1000
    heavy = b'{"a":[' + b",".join([b"[]"] * each) + b"]}"
    message = kserve.InferRequest(model_name="m")
    count = MOST_VALUES // each + 1
    tensor = message.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[count])
    tensor.contents.bytes_contents.extend([heavy] * count)
    with pytest.raises(PayloadTooLarge):
        read(message, ("m",))


def test_token_ids_beyond_what_json_may_have_are_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="more than 1048576 tokens") as caught:
        request_of(rtp.GenerateInput(token_ids=[1] * ((1 << 20) + 1)))
    assert caught.value.param == "token_ids"
