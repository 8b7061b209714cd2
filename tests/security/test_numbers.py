"""No number of a client is a server error: each is taken, or refused by its field's name."""

from typing import Any

import msgspec
import pytest

from protocol.decoding import check_opaque, within_bounds
from protocol.errors import InvalidRequest, TriptychError
from protocol.generate import decode_abort, decode_encode, decode_generate
from protocol.openai import decode_chat, decode_completion
from protocol.refs import KVRef
from protocol.sampling_checks import check_request
from protocol.types import GenerateRequest, SamplingParams
from tests.support.frontend_helpers import Fronts, frontends, render, render_prompts

HUGE = (10**30, -(10**30), (1 << 64) - 1, -(1 << 63) - 1)
INTEGERS = (
    "max_tokens", "n", "top_k", "seed", "min_tokens", "priority", "top_logprobs",
    "max_completion_tokens",
)  # fmt: skip
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
HANDLE = KVRef("r", "i", (1,), 16, host="h", port=5).to_params()


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Fronts:
    return frontends(tmp_path_factory.mktemp("models"))


def refused(decode: Any, body: Any) -> str | None:
    """The field that is named."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with pytest.raises(InvalidRequest) as caught:
        decode(data)
    return caught.value.param


def json_of(fields: dict[str, Any], name: str, number: int) -> bytes:
    """JSON with a number that no encoder of ours would write."""
    return msgspec.json.encode({**fields, name: 0}).replace(
        f'"{name}":0'.encode(), f'"{name}":{number}'.encode()
    )


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("name", INTEGERS)
def test_huge_integers_in_openai_requests(name: str, number: int) -> None:
    assert refused(decode_chat, json_of(CHAT, name, number)) == name
    if name not in ("top_logprobs", "max_completion_tokens"):
        assert refused(decode_completion, json_of({"prompt": "x"}, name, number)) == name


@pytest.mark.parametrize("number", HUGE)
def test_huge_integers_in_lists(number: int) -> None:
    for decode, fields, name in (
        (decode_chat, CHAT, "stop_token_ids"),
        (decode_generate, {}, "token_ids"),
        (decode_completion, {}, "prompt"),
    ):
        body = json_of(fields, name, 0).replace(b":0", f":[1,{number}]".encode())
        assert str(refused(decode, body)).startswith(name)
    emitted = f'{{"token_ids":[1],"emitted":{{"0":[{number}]}}}}'.encode()
    assert str(refused(decode_generate, emitted)).startswith("emitted")


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_huge_integers_in_handles(name: str, number: int) -> None:
    handles = f'{{"a":{{"size_bytes":[{{"deep":{number}}}]}}}}'
    for decode, fields in ((decode_chat, CHAT), (decode_generate, {"token_ids": [1]})):
        body = json_of(fields, name, 0).replace(
            f'"{name}":0'.encode(), f'"{name}":{handles}'.encode()
        )
        assert refused(decode, body) == name


def test_handles_nested_too_deep_for_a_message() -> None:
    nested: Any = 1
    for _ in range(100):
        nested = [nested]
    with pytest.raises(InvalidRequest) as caught:
        check_opaque({"a": nested}, "kv_transfer_params")
    assert caught.value.param == "kv_transfer_params"


@pytest.mark.parametrize(
    "fields",
    [
        {"remote_num_tokens": -1},
        {"remote_num_tokens": 1 << 40},
        {"remote_port": 99_999},
        {"remote_block_ids": [[-1]]},
        {"remote_block_ids": [[1 << 40]]},
        {"tp_size": 0},
    ],
)
def test_kv_handles_with_wrong_numbers(fields: dict[str, Any]) -> None:
    KVRef.from_params(HANDLE)
    with pytest.raises(InvalidRequest) as caught:
        KVRef.from_params({**HANDLE, **fields})
    assert caught.value.param == "kv_transfer_params"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 10**30}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 10_000}, "logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"min_p": 2}, "min_p"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
    ],
)
def test_the_token_route_has_the_ranges_of_the_openai_routes(
    fields: dict[str, Any], param: str
) -> None:
    values = ",".join(f'"{name}":{_json(value)}' for name, value in fields.items())
    body = f'{{"token_ids":[1],"sampling_params":{{{values}}}}}'.encode()
    assert refused(decode_generate, body) == f"sampling_params.{param}"


def _json(value: Any) -> str:
    return str(value) if isinstance(value, int) else msgspec.json.encode(value).decode()


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (GenerateRequest("r", [1], SamplingParams(logit_bias={1_000_000: 1.0})), "logit_bias"),
        (GenerateRequest("r", [1], SamplingParams(stop_token_ids=(1_000_000,))), "stop_token_ids"),
        (GenerateRequest("r", [1], SamplingParams(stop_token_ids=(-1,))), "stop_token_ids"),
        (GenerateRequest("r", [1], SamplingParams(max_tokens=2, min_tokens=3)), "min_tokens"),
        (GenerateRequest("r", [], SamplingParams()), "token_ids"),
        (GenerateRequest("r", [100], SamplingParams()), "token_ids"),
        (GenerateRequest("r", [1], SamplingParams(), emitted={0: [100]}), "emitted"),
        (GenerateRequest("r", [1], SamplingParams(max_tokens=2), emitted={0: [1] * 2}), "emitted"),
    ],
)
def test_ids_beyond_the_vocabulary(request_: GenerateRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request(request_, 100)
    assert caught.value.param == param
    check_request(GenerateRequest("r", [99], SamplingParams(logit_bias={99: 1.0})), 100)


@pytest.mark.parametrize("key", ["128", "-1", "x", "²", "1" * 5000, "", "1 "])
def test_emitted_names_choices(key: str) -> None:
    body = {"token_ids": [1], "emitted": {key: [1]}}
    assert refused(decode_generate, body) == "emitted"
    assert (
        refused(decode_generate, {"token_ids": [1], "emitted": {"1": [1], "01": []}}) == "emitted"
    )


def test_numbers_of_pictures_to_encode() -> None:
    item = {"mm_hash": "a", "modality": "image", "length": 4, "grid": (1, 4, 4)}
    decode_encode(msgspec.msgpack.encode({"request_id": "r", "items": [item]}))
    for wrong in ({"length": (1 << 64) - 1}, {"length": -1}, {"grid": (1, 0, 4)}):
        body = msgspec.msgpack.encode({"request_id": "r", "items": [{**item, **wrong}]})
        assert str(refused(decode_encode, body)).startswith("items[0]")
    endless = msgspec.msgpack.encode({"request_id": "r", "items": [], "deadline_s": float("nan")})
    assert refused(decode_encode, endless) == "deadline_s"


def test_what_is_made_here_is_checked_as_what_comes_in() -> None:
    assert within_bounds(SamplingParams(logit_bias={5: 1.0})) == SamplingParams(logit_bias={5: 1.0})
    for made in (SamplingParams(temperature=float("nan")), SamplingParams(n=0)):
        with pytest.raises(InvalidRequest):
            within_bounds(made)


@pytest.mark.parametrize(
    "body",
    [b'{"request_ids":["\\ud800"]}', b"[" * 100_000, b'{"request_ids":[1]}', b"{}", b"\xff", b""],
)
def test_abort_calls_that_make_no_sense(body: bytes) -> None:
    refused(decode_abort, body)
    assert decode_abort(b'{"request_ids":["a"]}') == ["a"]


def test_no_client_jumps_the_queue_unless_allowed(fronts: Fronts) -> None:
    for ask in (render, render_prompts):
        with pytest.raises(InvalidRequest, match="--min-priority") as caught:
            ask(fronts(), priority=-1)
        assert caught.value.param == "priority"
        ask(fronts(), priority=(1 << 63) - 1)
    allowing = fronts(min_priority=-10)
    assert render(allowing, priority=-10).generate.priority == -10
    with pytest.raises(InvalidRequest):
        render(allowing, priority=-11)


def test_a_rendered_request_always_fits_a_message(fronts: Fronts) -> None:
    """What the frontend lets through can be sent to an engine."""
    fields: list[dict[str, Any]] = [
        {"priority": (1 << 63) - 1}, {"seed": -(1 << 63)}, {"seed": (1 << 63) - 1},
        {"ec_transfer_params": {"h": {"size_bytes": (1 << 63) - 1}}}, {"temperature": 1e-300},
    ]  # fmt: skip
    for one in fields:
        msgspec.msgpack.encode(render(fronts(), **one).generate)
    with pytest.raises(TriptychError):
        render(fronts(), ec_transfer_params={"h": (1 << 64) - 1})
