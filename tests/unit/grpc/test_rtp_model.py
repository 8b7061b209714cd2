"""RTP-LLM's model service, asked by the bytes that RTP-LLM's own client sends."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import web

from services.frontend.render import Frontend
from services.grpc.proto import rtp_pb2 as pb
from services.grpc.rtp import request_of
from tests.conftest import Pass
from tests.support.frontend_helpers import data_url, frontend, picture, write_model
from tests.support.grpc_doors import door_of
from tests.support.scripted_workers import TOKENS, Worker, before
from tests.support.waiting import eventually

# A GenerateInputPB as RTP-LLM's client makes it of a request with token ids 5, 6, 7; up to four new
# tokens, top_k 3, top_p 0.5, temperature 0.25, repetition_penalty 1.5, seed 9, stop token 300,
# streamed; with the address of a prefill worker, a trace id, and fields that have no part here.
FOREIGN = bytes.fromhex(
    "084d12030506072279080410012803350000003f3d0000803e450000c03f52020809980101a001a846aa01060a04"
    "0a02ac02e80101880280fa01c00203ca021b0801120831302e302e302e3118c03e20c13e2a0750524546494c4cf0"
    "0201f80201e003018004408804ffffffffffffffffff019004ffffffffffffffffff019804012a02666530013801"
    "4a031a0174"
)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    return frontend(write_model("qwen2_5_vl", path))


async def asked(address: str, data: bytes, key: str = "") -> list[pb.GenerateOutputs]:
    headers = (("authorization", f"Bearer {key}"),) if key else ()
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_stream(
            "/RpcService/GenerateStreamCall", None, pb.GenerateOutputs.FromString
        )
        return [answer async for answer in call(data, metadata=headers, timeout=20)]


def ids_of(answer: pb.GenerateOutputs) -> Any:
    """As RTP-LLM's client reads a tensor."""
    tensor = answer.flatten_output.output_ids
    return np.frombuffer(tensor.int32_data, np.int32).reshape(list(tensor.shape)).tolist()


def message(**config: Any) -> pb.GenerateInput:
    made: pb.GenerateInput = pb.GenerateInput.FromString(FOREIGN)
    for name, value in config.items():
        setattr(made.generate_config, name, value)
    return made


async def test_rtp_llms_client_streams_token_ids(front: Frontend) -> None:
    worker = Worker()
    async with before(decode=[worker]) as stack, door_of(stack, front, rtp=True) as address:
        answers = await asked(address, FOREIGN)
        (call,) = worker.calls
        sampling = call.sampling
        assert call.token_ids == [5, 6, 7]
        assert (sampling.max_tokens, sampling.top_k, sampling.top_p) == (4, 3, 0.5)
        assert (sampling.temperature, sampling.seed) == (0.25, 9)
        assert sampling.repetition_penalty == 1.5 and 300 in sampling.stop_token_ids
        assert [ids_of(answer) for answer in answers] == [[[[token]]] for token in TOKENS]
        assert [list(a.flatten_output.finished) for a in answers][-2:] == [[False], [True]]
        info = answers[-1].flatten_output.aux_info[0]
        assert (info.input_len, info.output_len) == (3, len(TOKENS))
        assert {answer.request_id for answer in answers} == {77}
        assert stack.gateway.in_flight.count == 0


async def test_without_streaming_there_is_one_answer(front: Frontend) -> None:
    async with before(decode=[Worker()]) as stack, door_of(stack, front, rtp=True) as address:
        made = message(is_streaming=False, num_return_sequences=2)
        (answer,) = await asked(address, made.SerializeToString())
        assert ids_of(answer) == [[TOKENS], [TOKENS]]
        assert list(answer.flatten_output.finished) == [True, True]


BAD = [
    ({"num_beams": 4}, "generate_config.num_beams", 507),
    ({"top_p": 7.0}, "top_p", 507),
    ({"max_new_tokens": -3}, "max_tokens", 507),
]


@pytest.mark.parametrize(("config", "said", "code"), BAD)
async def test_errors_have_rtp_llms_details(
    config: dict[str, Any], said: str, code: int, front: Frontend
) -> None:
    async with before(decode=[Worker()]) as stack, door_of(stack, front, rtp=True) as address:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await asked(address, message(**config).SerializeToString())
        error = refused.value
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and said in str(error.details())
        trailing = dict(error.trailing_metadata() or ())
        details = pb.ErrorDetails.FromString(bytes(trailing["grpc-status-details-bin"]))
        assert (details.error_code, details.error_message) == (code, error.details())


async def test_a_key_and_token_ids_are_needed(front: Frontend) -> None:
    keys = ("secret",)
    async with (
        before(decode=[Worker()]) as stack,
        door_of(stack, front, keys, rtp=True) as address,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await asked(address, FOREIGN)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert len(await asked(address, FOREIGN, "secret")) == len(TOKENS)
        with pytest.raises(grpc.aio.AioRpcError) as empty:
            await asked(address, b"", "secret")
        assert "token_ids must not be empty" in str(empty.value.details())
        big = pb.GenerateInput(token_ids=[2**31 - 1])
        with pytest.raises(grpc.aio.AioRpcError) as outside:
            await asked(address, big.SerializeToString(), "secret")
        assert outside.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_health_is_told(front: Frontend) -> None:
    async with (
        before(decode=[Worker()]) as stack,
        door_of(stack, front, rtp=True) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        check = channel.unary_unary("/RpcService/CheckHealth", None, pb.Health.FromString)
        assert (await check(b"")).health == "ok"
        stack.fleet.decode[0].up = False
        assert (await check(b"")).health != "ok"


async def test_pictures_take_the_place_of_their_token(front: Frontend) -> None:
    pad = front.family.placeholders["image"].pad_id
    made = pb.GenerateInput(token_ids=[5, pad, 6])
    made.multimodal_inputs.add(multimodal_url=data_url(picture()))
    rendered = await front.render_raw(
        request_of(made), [one.multimodal_url for one in made.multimodal_inputs], request_id="r"
    )
    (item,) = rendered.generate.mm_items
    assert item.offset == 1 and item.length > 1
    assert rendered.generate.token_ids == [5, *[pad] * item.length, 6]


def test_a_config_without_fields_is_greedy_and_as_long_as_there_is_room() -> None:
    request = request_of(pb.GenerateInput(token_ids=[5]))
    assert (request.temperature, request.max_tokens, request.top_p) == (0, None, None)


async def test_a_timeout_ends_the_work(front: Frontend, passes: Pass) -> None:
    held: list[Any] = []

    async def stuck(request: Any) -> Any:
        held.append(request)
        await asyncio.Event().wait()
        yield b""

    async with (
        before(decode=[Worker(stuck)]) as stack,
        door_of(stack, front, rtp=True) as address,
    ):
        made = pb.GenerateInput.FromString(FOREIGN)
        made.generate_config.timeout_ms = 5000
        answer = asyncio.create_task(asked(address, made.SerializeToString()))
        await eventually(lambda: bool(held))
        passes(6.0)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await answer
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert stack.gateway.in_flight.count == 0


async def test_a_timeout_ends_the_rendering(tmp_path: Path, passes: Pass) -> None:
    """A picture that takes all the time leaves none for the answer, and not all of it anew."""
    asked_for = asyncio.Event()

    async def never(request: web.Request) -> web.Response:
        asked_for.set()
        await asyncio.Event().wait()
        raise AssertionError

    app = web.Application()
    app.router.add_get("/picture.png", never)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    worker, media = Worker(), {"allow_private": True}
    front = frontend(write_model("qwen2_5_vl", tmp_path / "tiny"), media=media)
    pad = front.family.placeholders["image"].pad_id
    made = pb.GenerateInput(token_ids=[5, pad, 6])
    made.generate_config.timeout_ms = 5000
    url = "http://{}:{}/picture.png".format(*runner.addresses[0][:2])
    made.multimodal_inputs.add(multimodal_url=url)
    async with before(decode=[worker]) as stack, door_of(stack, front, rtp=True) as address:
        answer = asyncio.create_task(asked(address, made.SerializeToString()))
        await eventually(asked_for.is_set)
        passes(6.0)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await answer
        # In our words: the library's own are of the client's deadline, which is far away.
        assert late.value.details() == "the request's deadline has passed"
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert not worker.calls
        assert stack.gateway.in_flight.count == 0
    await runner.cleanup()
    await front.close()
