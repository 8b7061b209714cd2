"""Bytes that are no message: an error of the caller's choice, for any fault."""

from typing import Any

import msgspec
import pytest

from protocol.decoding import decoded
from protocol.errors import InvalidRequest, UpstreamError
from protocol.generate import check_ec_params, decode_encode, decode_generate
from protocol.generate_answers import GenerateAnswer

DEEP = b"[" * 100_000
NONSENSE = [b"", b"{", b"[]", b"nonsense", b'"\xff"', DEEP, b'{"request_id":"r","choices":' + DEEP]


@pytest.mark.parametrize("data", [*NONSENSE, b'{"request_id":"\xc3\x28","choices":[]}'])
def test_nonsense_is_the_callers_error(data: bytes) -> None:
    with pytest.raises(UpstreamError) as error:
        decoded(data, GenerateAnswer, fail=UpstreamError)
    assert error.value.message


def test_what_makes_sense_is_decoded() -> None:
    data = b'{"request_id":"r","choices":[{"index":0,"token_ids":[1]}]}'
    answer = decoded(memoryview(data), GenerateAnswer, fail=UpstreamError)
    assert (answer.request_id, answer.choices[0].token_ids) == ("r", [1])


@pytest.mark.parametrize("data", NONSENSE)
def test_a_call_that_is_nonsense_is_the_clients_fault(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_generate(data)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81", b"\x84\xa1x" + b"\x91" * 100_000])
def test_an_encode_call_that_is_nonsense_is_the_clients_fault(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_encode(data)


@pytest.mark.parametrize(
    "fields", [{"items": [{}] * 4097}, {"items": [{"grid": [1] * 9, "mm_hash": "a"}]}]
)
def test_an_encode_call_is_refused_at_a_list_that_is_too_long(fields: dict[str, Any]) -> None:
    """Before what is in it is decoded: in msgpack a byte may be a number."""
    with pytest.raises(InvalidRequest, match="of length <="):
        decode_encode(msgspec.msgpack.encode({"request_id": "r", **fields}))


@pytest.mark.parametrize("entry", [5, "x", None, [], True])
def test_an_entry_that_is_no_object_is_named(entry: Any) -> None:
    params = {"good": {}, "n" * 100: entry}
    body = msgspec.json.encode({"token_ids": [1], "ec_transfer_params": params})
    with pytest.raises(InvalidRequest) as refused:
        decode_generate(body)
    assert refused.value.param == "ec_transfer_params." + "n" * 64


def test_objects_and_nothing_are_fine() -> None:
    check_ec_params(None)
    check_ec_params({"a": {}, "b": {"peer_host": "h"}})
