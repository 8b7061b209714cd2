"""Messages over gRPC count among all bodies, and calls that send nothing make room for others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.frontend.render import Frontend
from services.grpc.intake import Intake
from services.grpc.proto import kserve_pb2 as pb
from services.grpc.server import empty_handler, methods
from services.http.bodies import Bodies
from tests.support.frontend_helpers import frontend, write_model
from tests.support.grpc_doors import door_of
from tests.support.scripted_workers import TOKENS, Worker, before
from tests.support.waiting import eventually

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    return frontend(write_model("qwen2_5_vl", path))


def message(text: bytes = b"Hi") -> bytes:
    request = pb.InferRequest(model_name="tiny")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    request.parameters["max_tokens"].int64_param = len(TOKENS)
    data: bytes = request.SerializeToString()
    return data


async def asked(channel: Any, method: str, data: bytes) -> Any:
    """The answer's bytes, or the status code that refuses."""
    try:
        async with asyncio.timeout(20):
            return await channel.unary_unary(method)(data)
    except grpc.aio.AioRpcError as error:
        return error.code()


async def test_messages_have_the_room_that_other_bodies_leave(front: Frontend) -> None:
    async with (
        before(decode=[Worker()]) as stack,
        door_of(stack, front) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        bodies, size = stack.gateway.bodies, len(message())
        http = bodies.open(lambda: None)
        http.add(bodies.capacity - size + 1)
        http.complete()
        assert await asked(channel, INFER, message()) == grpc.StatusCode.RESOURCE_EXHAUSTED
        call = channel.stream_stream(STREAM)(iter([message()]), timeout=20)
        assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert bodies.held == http.size
        http.close()
        http = bodies.open(lambda: None)
        http.add(bodies.capacity - size)
        assert isinstance(await asked(channel, INFER, message()), bytes)
        assert bodies.held == http.size, "it is let go of once it is rendered"
        http.close()


async def test_a_message_that_is_none_or_too_large_is_the_clients_fault(front: Frontend) -> None:
    async with (
        before(decode=[Worker()]) as stack,
        door_of(stack, front) as address,
        grpc.aio.insecure_channel(
            address, options=[("grpc.max_send_message_length", -1)]
        ) as channel,
    ):
        bodies = stack.gateway.bodies
        assert await asked(channel, INFER, b"\xff\xff") == grpc.StatusCode.INVALID_ARGUMENT
        large = bytes(Intake.largest(bodies.largest, bodies.capacity) + 1)
        assert await asked(channel, INFER, large) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert bodies.held == 0 and stack.gateway.in_flight.count == 0


async def test_keys_come_before_messages(front: Frontend) -> None:
    """A caller without a key is refused while it has sent nothing else."""
    async with (
        before(decode=[Worker()]) as stack,
        door_of(stack, front, ("secret",)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        for method in (INFER, STREAM):
            call = channel.stream_stream(method)(timeout=20)
            assert await call.code() == grpc.StatusCode.UNAUTHENTICATED


@asynccontextmanager
async def echoing(intake: Intake, *, later: bool = False) -> AsyncIterator[Any]:
    """A channel to a server that answers /Echo/Name with the name that it was sent."""

    async def work(context: Any) -> pb.ModelName:
        async with intake.message(context, pb.ModelName, later=later) as received:
            return pb.ModelName() if received is None else received

    server = grpc.aio.server()
    handlers = {"Name": empty_handler(work, pb.ModelName)}
    server.add_generic_rpc_handlers((methods("Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0)


async def test_a_silent_call_gives_its_place_to_one_that_waits() -> None:
    intake = Intake(Bodies(1000, 1000), places=1, stall_s=0.05, patience_s=30.0)
    name = pb.ModelName(name="x").SerializeToString()
    async with echoing(intake) as channel, asyncio.timeout(20):
        silent = channel.stream_unary("/Echo/Name")()
        await eventually(lambda: len(intake._under_way) == 1)
        assert await asked(channel, "/Echo/Name", name) == name
        assert await silent.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not intake._under_way


async def test_no_call_keeps_its_place_or_waits_for_one_for_ever() -> None:
    intake = Intake(Bodies(1000, 1000), places=1, stall_s=30.0, patience_s=0.1)
    async with echoing(intake) as channel, asyncio.timeout(20):
        silent, waiting = (channel.stream_unary("/Echo/Name")() for _ in range(2))
        for call in (silent, waiting):
            assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        intake._patience_s = 30.0
        assert await asked(channel, "/Echo/Name", b"") == b""


async def test_a_call_that_sends_nothing_after_an_answer_has_sent_its_last() -> None:
    intake = Intake(Bodies(1000, 1000), places=1, stall_s=0.05, patience_s=30.0)
    name = pb.ModelName(name="x").SerializeToString()
    async with echoing(intake, later=True) as channel, asyncio.timeout(20):
        idle = channel.stream_unary("/Echo/Name")()
        await eventually(lambda: len(intake._under_way) == 1)
        assert await asked(channel, "/Echo/Name", name) == name
        assert await idle.code() == grpc.StatusCode.OK


async def test_a_call_without_a_message_is_told_so(front: Frontend) -> None:
    async with (
        before(decode=[Worker()]) as stack,
        door_of(stack, front) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = channel.stream_unary(INFER)(iter(()))
        with pytest.raises(grpc.aio.AioRpcError, match="no message"):
            await call
        assert await channel.stream_stream(STREAM)(iter(())).code() == grpc.StatusCode.OK
