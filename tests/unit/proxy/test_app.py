"""The proxy's HTTP application before scripted workers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from protocol.errors import InvalidRequest
from protocol.types import MMItem
from services.frontend.render import Frontend
from services.frontend.spec import OutputSpec, RenderedRequest
from services.http.version import version
from tests.support.frontend_helpers import frontend, write_model
from tests.support.scripted_apps import app_of
from tests.support.scripted_workers import TOKENS, Worker, asking, before

CHAT = "/v1/chat/completions"
PARAMS = {"model": "tiny", "max_tokens": len(TOKENS), "temperature": 0, "return_token_ids": True}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    return frontend(write_model("qwen2_5_vl", path))


async def ask(url: str, headers: dict[str, str] | None = None, **params: Any) -> tuple[int, Any]:
    """Status and answer, decoded unless it is a stream."""
    body = {**PARAMS, "messages": [{"role": "user", "content": "Hello"}], **params}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + CHAT, json=body, headers=headers) as response,
    ):
        streamed = response.content_type == "text/event-stream"
        return response.status, await (response.text() if streamed else response.json())


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_keep_the_connections_to_workers(stream: bool, front: Frontend) -> None:
    prefill, decode = Worker(), Worker()
    async with before(prefill=[prefill], decode=[decode]) as stack, app_of(stack, front) as url:
        for _ in range(3):
            status, answer = await ask(url, stream=stream)
            assert status == 200
            assert stream or answer["choices"][0]["token_ids"] == TOKENS
        assert (len(prefill.connections), len(decode.connections)) == (1, 1)
        assert not prefill.aborts
        assert stack.breaker(stack.decode[0]).successes == 3


async def test_workers_are_told_of_the_clients_trace(front: Frontend) -> None:
    """Also by a proxy that traces nothing itself."""
    prefill, decode = Worker(), Worker()
    trace = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "tracestate": "vendor=1"}
    async with before(prefill=[prefill], decode=[decode]) as stack, app_of(stack, front) as url:
        assert (await ask(url, trace))[0] == 200
        for worker in (prefill, decode):
            (told,) = worker.headers
            assert {name: told[name] for name in trace} == trace
        assert (await ask(url, {"traceparent": "of another form"}))[0] == 200
        assert "traceparent" not in decode.headers[-1]


async def test_a_client_names_no_place_to_fetch_from(front: Frontend) -> None:
    worker = Worker()
    steering = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 9}
    async with before(decode=[worker]) as stack, app_of(stack, front) as url:
        status, _ = await ask(
            url, kv_transfer_params=steering, ec_transfer_params={"h": {"peer_host": "10.0.0.1"}}
        )
        assert status == 200
        (call,) = worker.calls
        assert call.kv_transfer_params is None and call.ec_transfer_params is None
        status, answer = await ask(url, ec_transfer_params={"h": 5})
        assert status == 400 and answer["error"]["param"] == "ec_transfer_params.h"


async def test_tokens_out_of_range_are_the_workers_fault(front: Frontend) -> None:
    """And no internal error of the proxy."""

    async def huge(request: Any) -> AsyncIterator[bytes]:
        yield (
            b'data: {"request_id":"%s","choices":[{"index":0,"token_ids":[1099511627776]}]}\n\n'
            % request.request_id.encode()
        )

    flags = ("--max-retries", "0")
    async with before(decode=[Worker(huge)], flags=flags) as stack, app_of(stack, front) as url:
        status, answer = await ask(url)
        assert (status, answer["error"]["code"]) == (502, "upstream_error")


HASH = "c" * 64
STEERED = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 1}


def steering(**params: Any) -> RenderedRequest:
    request = asking(mm_items=[MMItem(HASH, "image", 0, 1)], **params)
    return RenderedRequest(request, {}, OutputSpec("r", "m", True, request.token_ids))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("references", [False, True])
async def test_a_client_does_not_steer_workers(split: bool, references: bool) -> None:
    """KV is fetched from nowhere that a client names, embeddings only where that is allowed."""
    decode, prefill = Worker(), Worker()
    place = {HASH: {"peer_host": "10.0.0.1", "peer_port": 1}}
    flags = ("--allow-media-references",) if references else ()
    async with before(prefill=[prefill] if split else [], decode=[decode], flags=flags) as stack:
        rendered = steering(kv_transfer_params=STEERED, ec_transfer_params=place)
        async for _ in stack.gateway.run(rendered):
            pass
    for call in (*prefill.calls, *decode.calls):
        assert "remote_host" not in (call.kv_transfer_params or {})
        entry = (call.ec_transfer_params or {})[HASH]
        assert ("peer_host" in entry) == references


@pytest.mark.parametrize("entry", [5, "x", None, [1]])
async def test_an_entry_that_is_no_object_is_refused(entry: Any) -> None:
    async with before(decode=[Worker()]) as stack:
        rendered = steering(ec_transfer_params={HASH: entry})
        with pytest.raises(InvalidRequest) as refused:
            await anext(stack.gateway.run(rendered))
        assert refused.value.param == f"ec_transfer_params.{HASH}"
        assert stack.gateway.in_flight.count == 0


async def test_what_platforms_ask_of_a_proxy(front: Frontend) -> None:
    """SageMaker's /ping, vLLM's /load and /version."""
    async with (
        before(decode=[Worker()]) as stack,
        app_of(stack, front) as url,
        aiohttp.ClientSession() as session,
    ):
        for method in ("GET", "POST"):
            async with session.request(method, f"{url}/ping") as answer:
                assert (answer.status, await answer.read()) == (200, b"")
        async with session.get(f"{url}/version") as answer:
            assert await answer.json() == {"version": version()}
        with stack.gateway.in_flight.counted():
            async with session.get(f"{url}/load") as answer:
                assert await answer.json() == {"server_load": 1}
        stack.gateway.fleet.decode[0].up = False
        async with session.get(f"{url}/ping") as answer:
            assert answer.status == 503


async def state_of(url: str) -> tuple[tuple[int, str], tuple[int, list[str]]]:
    """Status and body of /ready, status and problems of /health."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/ready") as response:
            ready = response.status, await response.text()
        async with session.get(f"{url}/health") as response:
            return ready, (response.status, (await response.json())["problems"])


async def test_a_proxy_is_ready_while_text_can_be_served(front: Frontend) -> None:
    encode, prefill, decode = [Worker()], [Worker()], [Worker()]
    async with (
        before(encode=encode, prefill=prefill, decode=decode) as stack,
        app_of(stack, front) as url,
    ):
        assert await state_of(url) == ((200, ""), (200, []))
        (encoder,) = stack.fleet.encode
        encoder.up = False
        said = "no encode worker is up: requests with pictures, clips or audio are refused"
        assert await state_of(url) == ((200, said), (503, [said]))
        assert (await ask(url))[0] == 200
        async with aiohttp.ClientSession() as session, session.post(f"{url}/health") as checked:
            assert checked.status == 200, "RTP-LLM's load balancers go by this"
        for worker in (*stack.fleet.prefill, *stack.fleet.decode):
            worker.up = False
        assert await state_of(url) == ((503, said), (503, [said]))
        encoder.up = True
        assert await state_of(url) == ((503, ""), (503, []))
