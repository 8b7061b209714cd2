"""Bodies of the calls of workers and proxies."""

from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidRequest, PayloadTooLarge
from protocol.json_size import MOST_VALUES
from protocol.registry import InstanceInfo
from services.master.api.rpc import _Call, _Endpoints, read_body


class Piece(bytes):
    """Of a body. To add it to what came before would copy all of that."""

    def __radd__(self, before: bytes) -> bytes:
        raise AssertionError("copied")


def sending(*pieces: bytes) -> Any:
    left = list(pieces)

    async def receive() -> dict[str, Any]:
        piece = left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    return receive


async def test_pieces_are_put_together_once() -> None:
    pieces = [Piece(b"ab"), Piece(b""), Piece(b"c")]
    assert await read_body(sending(*pieces), 3) == b"abc"
    with pytest.raises(PayloadTooLarge):
        await read_body(sending(*pieces), 2)


async def test_no_more_than_allowed_is_read() -> None:
    with pytest.raises(PayloadTooLarge):
        await read_body(sending(b"a" * 5, b"never read"), 4)


REGISTER = _Call(InstanceInfo, lambda info: info, None, _Endpoints)


async def test_what_a_worker_may_say_in_any_form_is_short() -> None:
    """In msgpack each byte may be a list."""
    good = InstanceInfo("a", "prefill", "http://a", "m", kv_endpoint={"host": "a"})
    assert await REGISTER(msgspec.msgpack.encode(good), True) == good
    heavy = msgspec.structs.replace(good, ec_endpoint={"a": [[]] * (1 << 16)})
    with pytest.raises(InvalidRequest, match="ec_endpoint is longer than") as caught:
        await REGISTER(msgspec.msgpack.encode(heavy), True)
    assert caught.value.param == "ec_endpoint"


async def test_json_that_takes_long_to_decode_is_refused() -> None:
    with pytest.raises(PayloadTooLarge):
        await REGISTER(b'{"kv_endpoint":{"a":[' + b"[]," * MOST_VALUES + b"[]]}}", False)
