"""Who asks over gRPC is who asks over HTTP: by key and address."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grpc
import pytest

from protocol.server_options import TlsOptions
from services.frontend.render import Frontend
from services.grpc.callers import address_of
from services.grpc.doors import Behind, Place, door
from services.grpc.proto import kserve_pb2, rtp_pb2
from services.grpc.tensors import packed
from services.http.access import Access
from tests.support.frontend_helpers import NAME, frontend, write_model
from tests.support.name_servers import Names, name_server
from tests.support.openai_server import TEXT, Server, asking
from tests.support.waiting import eventually

Message = Callable[[Frontend, str], bytes]
PLACE = Place("test", "127.0.0.1", 64, TlsOptions())


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    return frontend(write_model("qwen2_5_vl", path))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    with name_server(monkeypatch) as server:
        yield server


def kserve(front: Frontend, url: str) -> bytes:
    """A message that asks about a picture, if there is a URL."""
    asked = kserve_pb2.InferRequest(model_name=NAME)
    for name, value in {"text_input": "Hi", **({"image": url} if url else {})}.items():
        asked.inputs.add(name=name, datatype="BYTES", shape=[1])
        asked.raw_input_contents.append(packed([value]))
    asked.parameters["max_tokens"].int64_param = 1
    return bytes(asked.SerializeToString())


def rtp(front: Frontend, url: str) -> bytes:
    pad = [front.family.placeholders["image"].pad_id] if url else []
    asked = rtp_pb2.GenerateInput(token_ids=[5, *pad, 6])
    asked.generate_config.max_new_tokens = 1
    if url:
        asked.multimodal_inputs.add(multimodal_url=url)
    return bytes(asked.SerializeToString())


PROTOCOLS = (
    ("kserve", "/inference.GRPCInferenceService/ModelInfer", kserve),
    ("rtp", "/RpcService/GenerateStreamCall", rtp),
)


async def told(port: int, method: str, data: bytes, **metadata: str) -> list[bytes]:
    headers = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_stream(method)(data, metadata=headers, timeout=20)
        return [answer async for answer in call]


def behind(server: Server) -> Behind:
    return Behind(server.service(), lambda model: True, Access())


async def asked_over_both(
    protocol: str, method: str, data: bytes, front: Frontend, headers: Iterable[dict[str, str]]
) -> Server:
    """A server that was asked over HTTP and then over gRPC with each of these headers."""
    server = Server(front)
    async with asking(server) as (ask, _), door(protocol, 0, PLACE, lambda: behind(server)) as port:
        for given in headers:
            assert (await ask(TEXT, {"prompt": "Hi", "max_tokens": 1}, **given))[0] == 200
            assert await told(port, method, data, **given)
    return server


KEYS: tuple[dict[str, str], ...] = (
    {}, {"authorization": "Bearer a"}, {"authorization": "Bearer b"}, {"x_api_key": "a"},
)  # fmt: skip


@pytest.mark.parametrize(("protocol", "method", "message"), PROTOCOLS)
async def test_a_key_is_one_tenant_over_both(
    protocol: str, method: str, message: Message, front: Frontend
) -> None:
    server = await asked_over_both(protocol, method, message(front, ""), front, KEYS)
    over_http, over_grpc = server.tenants[::2], server.tenants[1::2]
    assert over_grpc == over_http
    without_key, first, second, spelled = over_http
    assert without_key == "" != first != second and spelled == first


@pytest.mark.parametrize(("protocol", "method", "message"), PROTOCOLS)
async def test_a_conversation_is_named_as_over_http(
    protocol: str, method: str, message: Message, front: Frontend
) -> None:
    named: tuple[dict[str, str], ...] = ({}, {"x_session_id": "talk"}, {"x_session_id": "s" * 300})
    server = await asked_over_both(protocol, method, message(front, ""), front, named)
    assert server.sessions[1::2] == server.sessions[::2] == ["", "talk", "s" * 256]


@pytest.mark.parametrize(("protocol", "method", "message"), PROTOCOLS)
async def test_an_answer_ends_with_its_deadline(
    protocol: str, method: str, message: Message, front: Frontend
) -> None:
    """Also where what computes it goes on."""
    server = Server(front, endless=True, step_s=0.02, timeout_s=0.5)
    async with door(protocol, 0, PLACE, lambda: behind(server)) as port:
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await told(port, method, message(front, ""))
        # In our words: the library's own are of the client's deadline, which is far away.
        assert late.value.details() == "the request's deadline has passed"
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: server.running == 0 and server.inside == 0)


@pytest.mark.parametrize(("protocol", "method", "message"), PROTOCOLS)
async def test_slow_names_of_one_caller_hold_up_no_other(
    protocol: str, method: str, message: Message, front: Frontend, names: Names
) -> None:
    server = Server(front, room=100)
    async with door(protocol, 0, PLACE, lambda: behind(server)) as port:

        def asked(host: str, key: str) -> asyncio.Future[list[bytes]]:
            data = message(front, f"http://{host}/picture.png")
            return asyncio.ensure_future(told(port, method, data, authorization=key))

        theirs = [asked(f"{number}.slow", "Bearer them") for number in range(8)]
        await eventually(lambda: names.slow == 4)
        ours = asked("us.slow", "Bearer us")
        await eventually(lambda: "us.slow" in names.asked)
        assert names.slow == 5
        names.go_on.set()
        ends = await asyncio.gather(*theirs, ours, return_exceptions=True)
    assert all(isinstance(end, grpc.aio.AioRpcError) for end in ends)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:38412", "127.0.0.1"),
        ("ipv6:%5B::1%5D:38412", "::1"),
        ("ipv6:[fe80::1%252]:38412", "fe80::1%2"),
        ("unix:/run/door", ""),
        ("unix:", ""),
        ("", ""),
    ],
)
def test_an_address_has_no_port(peer: str, address: str) -> None:
    assert address_of(peer) == address
