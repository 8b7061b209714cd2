"""KServe's protocol at the proxy, asked by Triton's own client."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import aio as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from protocol.errors import ConfigError
from protocol.types import GenerateRequest
from services.frontend.render import Frontend
from tests.support.frontend_helpers import frontend, picture, write_model
from tests.support.grpc_doors import door_of
from tests.support.scripted_workers import TOKENS, Worker, before, plainly
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    return frontend(write_model("qwen2_5_vl", path))


def tensor(name: str, *values: Any) -> Any:
    boolean = isinstance(values[0], bool)
    found = triton.InferInput(name, [len(values)], "BOOL" if boolean else "BYTES")
    kind = np.bool_ if boolean else np.object_
    found.set_data_from_numpy(np.array(values, dtype=kind))
    return found


LIMITS = {"max_tokens": len(TOKENS), "temperature": 0}


def texts(result: Any, name: str = "text_output") -> list[str]:
    return [element.decode() for element in result.as_numpy(name)]


async def test_the_client_asks_for_health_and_metadata(front: Frontend) -> None:
    async with before(decode=[Worker()]) as stack, door_of(stack, front) as address:
        client = triton.InferenceServerClient(address)
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("tiny")
        metadata = await client.get_model_metadata("tiny")
        assert [one.name for one in metadata.outputs] == ["text_output", "finish_reason"]
        config = (await client.get_model_config("tiny")).config
        assert config.name == "tiny" and config.model_transaction_policy.decoupled
        assert not await client.is_model_ready("other")
        with pytest.raises(InferenceServerException, match="'other' is not served here"):
            await client.get_model_metadata("other")
        assert (await client.get_server_metadata()).name == "triptych"
        stack.fleet.decode[0].up = False
        assert not (await client.is_server_ready() or await client.is_model_ready("tiny"))
        await client.close()


async def test_texts_are_inferred_whole(front: Frontend) -> None:
    worker = Worker()
    async with before(decode=[worker]) as stack, door_of(stack, front) as address:
        client = triton.InferenceServerClient(address)
        result = await client.infer(
            "tiny", [tensor("text_input", "Hi", "there")], request_id="mine", parameters=LIMITS
        )
        text = front.tokenizer.decode(TOKENS)
        assert texts(result) == [text, text] and texts(result, "finish_reason") == ["length"] * 2
        assert result.get_response().id == "mine"
        assert sorted(call.token_ids for call in worker.calls) == sorted(
            [front.tokenizer.encode("Hi"), front.tokenizer.encode("there")]
        )
        sampling = tensor("sampling_parameters", json.dumps({**LIMITS, "top_k": 3}))
        wanted = [triton.InferRequestedOutput("finish_reason")]
        result = await client.infer("tiny", [tensor("text_input", "Hi"), sampling], outputs=wanted)
        assert result.as_numpy("text_output") is None and worker.calls[-1].sampling.top_k == 3
        await client.close()


async def test_contents_may_be_typed(front: Frontend) -> None:
    """As KServe's own clients send them, without raw bytes."""
    async with before(decode=[Worker()]) as stack, door_of(stack, front) as address:
        request = service_pb2.ModelInferRequest(model_name="tiny")
        given = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        given.contents.bytes_contents.append(b"Hi")
        request.parameters["max_tokens"].int64_param = len(TOKENS)
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                service_pb2.ModelInferRequest.SerializeToString,
                service_pb2.ModelInferResponse.FromString,
            )
            answer = await call(request)
        assert front.tokenizer.decode(TOKENS).encode() in answer.raw_output_contents[0]


async def streamed(address: str, *asked: dict[str, Any], **options: Any) -> list[Any]:
    """(result, error) of all responses."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for one in asked:
            yield {"model_name": "tiny", **one}

    client = triton.InferenceServerClient(address)
    found = [piece async for piece in client.stream_infer(requests(), **options)]
    await client.close()
    return found


async def test_a_stream_has_pieces_and_goes_on_after_an_error(front: Frontend) -> None:
    async with before(decode=[Worker()]) as stack, door_of(stack, front) as address:
        good = {
            "inputs": [tensor("text_input", "Hi"), tensor("streaming", True)],
            "parameters": LIMITS,
        }
        bad = {"inputs": [tensor("text_input", "Hi"), tensor("stream", "yes")]}
        found = await streamed(address, good, bad, good)
        errors = [str(error) for _, error in found if error is not None]
        assert len(errors) == 1 and "stream must have the datatype BOOL" in errors[0]
        results = [result for result, error in found if error is None]
        finals = [r.get_response().parameters["triton_final_response"].bool_param for r in results]
        first = finals.index(True) + 1
        pieces = ["".join(texts(r)) for r in results if r.as_numpy("text_output") is not None]
        assert "".join(pieces) == 2 * front.tokenizer.decode(TOKENS)
        assert first > 1 and finals.count(True) == 2


async def test_a_stream_ends_empty_where_that_is_asked_for(front: Frontend) -> None:
    """As Triton's synchronous client does."""
    request = service_pb2.ModelInferRequest(model_name="tiny")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.inputs.add(name="streaming", datatype="BOOL", shape=[1])
    request.raw_input_contents.extend([b"\x02\x00\x00\x00Hi", b"\x01"])
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    async with (
        before(decode=[Worker()]) as stack,
        door_of(stack, front) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelStreamInferResponse.FromString,
        )
        found = [one.infer_response async for one in call(iter([request]))]
    finals = [one.parameters["triton_final_response"].bool_param for one in found]
    assert finals == [False] * (len(found) - 1) + [True] and not found[-1].outputs


async def test_pictures_are_named_where_they_are_wrong(front: Frontend) -> None:
    given = base64.b64encode(picture()).decode()
    texts_and_pictures = [("x", "!!"), ("x", "http://127.0.0.1/x.png"), ("<img/><img/>", given)]
    async with before(decode=[Worker()]) as stack, door_of(stack, front) as address:
        client = triton.InferenceServerClient(address)
        for text, image in texts_and_pictures:
            inputs = [tensor("text_input", text), tensor("image", image)]
            with pytest.raises(InferenceServerException) as refused:
                await client.infer("tiny", inputs)
            assert refused.value.status() == "StatusCode.INVALID_ARGUMENT", refused.value
        await client.close()


BAD = [
    ([], {}, "text_input is missing"),
    ([("text_input", "x"), ("weather", "y")], {}, "'weather' is no input"),
    ([("text_input", "x"), ("streaming", True)], {}, "use ModelStreamInfer"),
    ([("text_input", "x"), ("sampling_parameters", "[")], {}, "must be a JSON object"),
    ([("text_input", "x")], {"temprature": 1}, "Unrecognized request argument"),
    ([("text_input", "x")], {"top_p": 7.0}, "top_p"),
    ([("text_input", "x", "y"), ("image", "z")], {}, "pictures go with one text_input"),
]


@pytest.mark.parametrize(("inputs", "parameters", "said"), BAD)
async def test_what_is_wrong_is_said(
    inputs: list[Any], parameters: dict[str, Any], said: str, front: Frontend
) -> None:
    async with before(decode=[Worker()]) as stack, door_of(stack, front) as address:
        client = triton.InferenceServerClient(address)
        with pytest.raises(InferenceServerException, match=said.replace("[", r"\[")) as refused:
            given = [tensor(name, *values) for name, *values in inputs]
            await client.infer("tiny", given, parameters=parameters)
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert stack.gateway.in_flight.count == 0
        await client.close()


async def test_raw_contents_that_are_cut_short_are_refused(front: Frontend) -> None:
    async with before(decode=[Worker()]) as stack, door_of(stack, front) as address:
        request = service_pb2.ModelInferRequest(model_name="tiny")
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        request.raw_input_contents.append(b"\xff\x00\x00\x00Hi")
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                service_pb2.ModelInferRequest.SerializeToString,
                service_pb2.ModelInferResponse.FromString,
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_keys_are_asked_for(front: Frontend) -> None:
    keys = ("secret",)
    async with before(decode=[Worker()]) as stack, door_of(stack, front, keys) as address:
        client = triton.InferenceServerClient(address)
        assert await client.is_server_live()
        with pytest.raises(InferenceServerException) as refused:
            await client.infer("tiny", [tensor("text_input", "Hi")])
        assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        key = {"authorization": "Bearer secret"}
        await client.infer("tiny", [tensor("text_input", "Hi")], headers=key)
        await client.close()


async def test_who_leaves_ends_the_work(front: Frontend) -> None:
    begun = asyncio.Event()

    async def stuck(request: GenerateRequest) -> AsyncIterator[bytes]:
        yield await anext(plainly(request))
        begun.set()
        await asyncio.Event().wait()

    worker = Worker(stuck)
    async with before(decode=[worker]) as stack, door_of(stack, front) as address:
        client = triton.InferenceServerClient(address)
        call = asyncio.create_task(client.infer("tiny", [tensor("text_input", "Hi")]))
        async with asyncio.timeout(10):
            await begun.wait()
            call.cancel()
            await eventually(lambda: worker.left == 1 and not stack.gateway.in_flight.count)
        with pytest.raises(InferenceServerException) as late:
            await client.infer("tiny", [tensor("text_input", "Hi")], client_timeout=0.2)
        assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        await client.close()


async def test_it_needs_a_model_to_render_for() -> None:
    async with before(decode=[Worker()]) as stack:
        with pytest.raises(ConfigError, match="they need a model"):
            async with door_of(stack, None):
                pass
