"""Which requests are relayed: what probing finds, and where a request goes in a mixed fleet."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import uvicorn
from aiohttp import web
from uvicorn.server import ServerState

from protocol.errors import ConfigError
from proxy.__main__ import _models
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.fleet.probing import probe_once
from proxy.relay.media import may_hold_media
from proxy.relay.response import ClientResponse
from proxy.relay.serving import connection_class
from proxy.upstream.answer import Answer
from proxy.upstream.client import UpstreamClient
from services.http.bodies import Bodies
from tests.support.listening import run

CHAT = "/v1/chat/completions"
OURS = {"/health": {}, "/server_info": {"dialect": "tokens"}, "/v1/models": {"data": []}}
VLLM = {"/health": {}, "/version": {"version": "0.33.0"}, "/v1/models": {"data": [{"id": "m"}]}}
OLD = {"/health": {}, "/version": {"version": "0.33.0"}}
SILENT: dict[str, Any] = {"/health": {}}


@contextlib.asynccontextmanager
async def serving(answers: dict[str, Any]) -> AsyncIterator[str]:
    """A worker that answers these paths, and 404 to all others; `answers` may change."""

    async def handle(request: web.Request) -> web.Response:
        if request.path not in answers:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response(answers[request.path])

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def fleet_of(
    encode: dict[str, Any], prefill: dict[str, Any], decode: dict[str, Any], dialect: str = "auto"
) -> AsyncIterator[tuple[Fleet, UpstreamClient]]:
    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(a)) for a in (encode, prefill, decode)]
        client = UpstreamClient(2.0, probe_timeout_s=20.0)
        stack.push_async_callback(client.close)
        fleet = Fleet.from_urls(urls[0], urls[1], urls[2])
        fleet.force_dialect(dialect)
        await probe_once(fleet, client)
        yield fleet, client


@pytest.mark.parametrize(
    ("encode", "prefill", "decode", "relayed"),
    [
        (OURS, OURS, OURS, "none"),
        (VLLM, VLLM, VLLM, "all"),
        (VLLM, OURS, OURS, "media"),
        (OURS, VLLM, OURS, "all"),
        (OURS, OURS, OLD, "all"),
        (OURS, SILENT, OURS, "none"),
    ],
)
def test_probing_finds_out_who_must_be_relayed_to(
    encode: dict[str, Any], prefill: dict[str, Any], decode: dict[str, Any], relayed: str
) -> None:
    async def work() -> None:
        async with fleet_of(encode, prefill, decode) as (fleet, _):
            assert fleet.relayed == relayed
            said = [a is not SILENT for a in (encode, prefill, decode)]
            assert [instance.up for instance in fleet.all()] == said

    run(work)


@pytest.mark.parametrize(("dialect", "relayed"), [("openai", "all"), ("tokens", "none")])
def test_a_forced_dialect_is_not_asked_for(dialect: str, relayed: str) -> None:
    async def work() -> None:
        other = OURS if dialect == "openai" else VLLM
        async with fleet_of(other, other, other, dialect) as (fleet, client):
            assert fleet.relayed == relayed
            for instance in fleet.all():
                instance.up = False
            await probe_once(fleet, client)
            assert fleet.relayed == relayed and all(i.up for i in fleet.all())

    run(work)


def test_a_worker_that_came_back_as_another_is_asked_again() -> None:
    async def work() -> None:
        answers = dict(OURS)
        async with fleet_of(OURS, OURS, answers) as (fleet, client):
            assert fleet.relayed == "none"
            del answers["/health"]
            await probe_once(fleet, client)
            assert not fleet.decode[0].up
            answers.clear()
            answers.update(VLLM)
            await probe_once(fleet, client)
            assert fleet.decode[0].up and fleet.relayed == "all"

    run(work)


def test_only_relaying_does_without_a_model() -> None:
    missing = "/nonexistent/model"
    assert _models(ProxyConfig(model=missing, dialect="openai")) is None
    with pytest.raises(ConfigError, match="--dialect openai"):
        _models(ProxyConfig(model=missing))


class OnlyMedia:
    """A hot path that takes requests with media."""

    max_body_bytes = 1 << 20
    bodies = Bodies(1 << 20, 1 << 24)
    takes_any = True
    takes_all = False

    def keeps_record(self, request_id: bytes) -> bool:
        return True

    def takes(self, body: bytes) -> bool:
        return may_hold_media(body)

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass

    def observe(self, error: Exception) -> None:
        raise AssertionError(error)

    def over(self, reply: ClientResponse) -> None:
        pass

    async def answer(self, call: Any, reply: ClientResponse, source: Any) -> None:
        reply.whole(Answer(200, b"application/json", b'{"by":"relay"}'))


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Says what it has been sent."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    said = {"by": "app", "path": scope["path"], "size": len(body), "mark": headers.get("mark")}
    data = json.dumps(said).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": data})


def test_only_encoders_of_another_kind_leave_text_to_the_tokens_way() -> None:
    async def work() -> None:
        config = uvicorn.Config(application, log_config=None)
        protocol = functools.partial(connection_class(OnlyMedia()), config, ServerState(), {})
        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        picture = {"type": "image_url", "image_url": {"url": "data:," + "A" * 200_000}}
        bodies: list[tuple[Any, str]] = [
            ({"messages": [{"role": "user", "content": "hi " * 50_000}]}, "app"),
            ({"messages": [{"role": "user", "content": [picture]}]}, "relay"),
        ]
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            for body, by in bodies * 3:
                data = json.dumps(body).encode()
                async with session.post(url + CHAT, data=data, headers={"mark": "x"}) as response:
                    said = json.loads(await response.read())
                assert said["by"] == by
                if by == "app":
                    assert said == {"by": "app", "path": CHAT, "size": len(data), "mark": "x"}
        server.close()

    run(work)
