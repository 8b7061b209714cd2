"""The `openai` dialect on real sockets: before workers that follow a script, and before our own."""

import asyncio
import base64
import contextlib
import functools
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import uvicorn
from uvicorn.server import ServerState

from protocol.settings import resolve
from proxy.app import create_app
from proxy.client import UpstreamClient
from proxy.config import ProxyConfig
from proxy.encode_stage import EncodeStage
from proxy.fleet import Fleet
from proxy.gateway import Gateway
from proxy.metrics import ProxyMetrics
from proxy.pipeline import Pipeline
from proxy.relay.edge import edge_for
from proxy.relay.relay import Relay
from tests.conftest import ModelDir
from tests.conversations import LONG, asking, picture, picture_cases
from tests.integration.clients import body_of, tokens
from tests.reference import reference_generate
from tests.stack import Process, Stack, call, idle, proxy, running

CHAT = "/v1/chat/completions"
PICTURE = base64.b64encode(bytes(range(256)) * 200).decode()
WHOLE = {"choices": [{"index": 0, "message": {"content": "whole"}, "finish_reason": "stop"}]}
EVENTS = [
    b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % number for number in range(4)
]
DONE = b"data: [DONE]\n\n"
HANDLES = {"do_remote_prefill": True, "remote_request_id": "held", "remote_port": 5600}


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: Any
    size: int


Behaviour = Callable[["Worker", Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Worker:
    """A worker that follows its script, one behaviour per request, and is good after its end.
    `left` counts connections that were closed on it while it worked."""

    role: str
    script: list[Behaviour] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    left: int = 0
    url: str = ""
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = await read_request(reader)
                if asked.path.endswith("/abort_requests"):
                    self.aborted += asked.body["request_ids"]
                    await send(writer, b"{}")
                    continue
                self.asked.append(asked)
                behave = self.script.pop(0) if self.script else good
                work = asyncio.ensure_future(behave(self, asked, writer))
                gone = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    self.left += 1
                    work.cancel()
                    break
                try:
                    work.result()
                except ConnectionError:
                    self.left += 1
                    break
                if writer.is_closing() or (gone.done() and not gone.result()):
                    break
                # the byte that `gone` may take is the first of the next request
                reader = Prefixed(reader, gone)  # type: ignore[assignment]
        writer.close()


class Prefixed:
    """A reader whose first byte is on its way by another task."""

    def __init__(self, reader: Any, first: "asyncio.Future[bytes]") -> None:
        self._reader, self._first = reader, first

    async def readuntil(self, end: bytes) -> bytes:
        first = await self._first
        if not first:
            raise asyncio.IncompleteReadError(b"", None)
        return first + bytes(await self._reader.readuntil(end))

    async def readexactly(self, count: int) -> bytes:
        return bytes(await self._reader.readexactly(count))

    async def read(self, count: int) -> bytes:
        return bytes(await self._reader.read(count))


async def read_request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(head[0].split()[1], headers, json.loads(body) if body else None, len(body))


async def send(
    writer: asyncio.StreamWriter, body: bytes, kind: str = "application/json", status: int = 200,
    extra: str = "",
) -> None:  # fmt: skip
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{extra}content-length: {len(body)}\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()


async def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()
    await asyncio.sleep(0)


async def begin(writer: asyncio.StreamWriter, kind: str = "text/event-stream") -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode())


async def good(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    if asked.body.get("stream"):
        await begin(writer)
        for event in (*EVENTS, DONE):
            await chunk(writer, event)
        writer.write(b"0\r\n\r\n")
        return
    answer: dict[str, Any] = dict(WHOLE)
    if worker.role == "encode":
        (part,) = asked.body["messages"][0]["content"]
        name = f"hash-{len(json.dumps(part))}-{part.get('uuid', '')}"
        metadata = {"image_grid_thw": [1, 4, 4]}
        answer["ec_transfer_params"] = {
            name: {"modality": "image", "item_indices": [0], "metadata": metadata}
        }
    if worker.role == "prefill":
        answer["kv_transfer_params"] = HANDLES
    await send(writer, json.dumps(answer).encode())


async def hang(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def drop(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def not_http(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x01 what is this\r\n\r\n")
    await asyncio.sleep(60)


def saying(
    body: bytes, kind: str = "application/json", status: int = 200, extra: str = ""
) -> Behaviour:
    async def behave(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await send(writer, body, kind, status, extra)

    return behave


def streaming(*pieces: bytes, end: str = "hang") -> Behaviour:
    """A stream of these pieces that then hangs, is dropped, or ends without an end mark."""

    async def behave(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await begin(writer)
        for piece in pieces:
            await chunk(writer, piece)
        if end == "hang":
            await asyncio.sleep(60)
        elif end == "drop":
            writer.close()
        else:
            writer.write(b"0\r\n\r\n")

    return behave


ERROR = b'{"error":{"message":"it broke","code":500}}'
FAILURES = {
    "garbage": saying(b"<html>oops</html>"),
    "half a JSON": saying(b'{"choices": [{"index"'),
    "wrong content type": saying(json.dumps(WHOLE).encode(), "text/html"),
    "not HTTP": not_http,
    "500": saying(ERROR, status=500),
    "503": saying(ERROR, status=503, extra="retry-after: 1\r\n"),
    "429": saying(ERROR, status=429),
    "hang": hang,
    "drop": drop,
}
STREAM_FAILURES = {
    **FAILURES,
    "no event in the stream": streaming(b": nothing\n\n", end="end"),
    "half an event": streaming(b'data: {"choices":', end="drop"),
    "an event of nonsense": streaming(b"data: {nonsense}\n\n"),
    "an error event": streaming(b"data: " + ERROR + b"\n\n", DONE, end="end"),
    "JSON instead of a stream": saying(json.dumps(WHOLE).encode()),
}
UNASKED = {"a stream that was not asked for": streaming(EVENTS[0])}


@dataclass
class Relayed:
    """A relay on a port of its own before scripted workers."""

    url: str
    workers: dict[str, list[Worker]]
    relay: Relay
    metrics: ProxyMetrics
    session: aiohttp.ClientSession

    def all(self) -> list[Worker]:
        return [worker for workers in self.workers.values() for worker in workers]

    async def post(self, body: Any, headers: Any = None, path: str = CHAT) -> tuple[int, bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data, headers=headers) as response:
            return response.status, await response.read()

    def metric(self, name: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return sum(float(x.split()[-1]) for x in lines if x.startswith(f"triptych_proxy:{name}"))


FLAGS = (
    "--dialect", "openai", "--encode-timeout", "0.5", "--prefill-timeout", "0.5",
    "--first-token-timeout", "0.5", "--decode-timeout", "0.5", "--stall-timeout", "0.5",
    "--retry-backoff", "0.001",
    "--breaker-failures", "100", "--request-timeout", "20",
)  # fmt: skip


@contextlib.asynccontextmanager
async def relaying(topology: str, *flags: str) -> AsyncIterator[Relayed]:
    """`topology` has a letter per worker: E, P, D."""
    names = {"E": "encode", "P": "prefill", "D": "decode"}
    workers: dict[str, list[Worker]] = {name: [] for name in names.values()}
    async with contextlib.AsyncExitStack() as stack:
        for letter in topology:
            worker = Worker(names[letter])
            server = await asyncio.start_server(worker.serve, "127.0.0.1", 0, limit=1 << 26)
            worker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            stack.callback(server.close)
            workers[names[letter]].append(worker)
        config = resolve(ProxyConfig, [*FLAGS, *flags], {})
        urls = [",".join(w.url for w in workers[name]) or "none" for name in names.values()]
        fleet = Fleet.from_urls(*urls)
        fleet.force_dialect("openai")
        metrics = ProxyMetrics(fleet)
        client = UpstreamClient(2.0)
        stack.push_async_callback(client.close)
        pipeline = Pipeline(fleet, client, EncodeStage(fleet, client, 5.0), 5.0)
        app = create_app(Gateway(config, None, fleet, client, pipeline, metrics))
        relay = Relay(fleet, config, metrics)
        stack.push_async_callback(relay.close)
        protocol = functools.partial(
            edge_for(relay), uvicorn.Config(app, log_config=None), ServerState(), {}
        )
        listener = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        stack.callback(listener.close)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Relayed(url, workers, relay, metrics, session)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 — what is awaited has no event
            await asyncio.sleep(0.005)


def text(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}


def pictures(*urls: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": "m", "messages": [{"role": "user", "content": parts}], **more}


def data_url(name: str) -> str:
    return f"data:image/png;base64,{PICTURE}{name}"


@pytest.mark.parametrize("topology", ["D", "PD", "ED", "EPD"])
@pytest.mark.parametrize("stream", [False, True])
def test_answers_come_through_byte_for_byte(topology: str, stream: bool) -> None:
    async def work() -> None:
        async with relaying(topology) as relayed:
            for body in (text(stream=stream), pictures(data_url("A"), stream=stream)):
                status, answer = await relayed.post(body)
                assert status == 200
                expected = b"".join(EVENTS) + DONE if stream else json.dumps(WHOLE).encode()
                assert answer == expected
            decode = relayed.workers["decode"][0].asked
            assert [asked.body["stream"] for asked in decode] == [stream, stream]
            handed = HANDLES if "P" in topology else None
            assert [asked.body.get("kv_transfer_params") for asked in decode] == [handed] * 2
            part = decode[1].body["messages"][0]["content"][0]
            assert part["type"] == ("image_embeds" if "E" in topology else "image_url")
            assert all(worker.left == 0 for worker in relayed.all())
            assert relayed.relay.in_flight == 0

    run(work)


def test_what_each_stage_is_sent() -> None:
    async def work() -> None:
        async with relaying("EPD") as relayed:
            headers = {"authorization": "Bearer key", "x-request-id": "me", "cookie": "private"}
            async with relayed.session.post(
                relayed.url + CHAT, json=pictures(data_url("A")), headers=headers
            ) as response:
                assert response.headers["x-request-id"] == "me"
            for worker in relayed.all():
                (asked,) = worker.asked
                assert asked.path == CHAT
                assert asked.headers["authorization"] == "bearer key"
                assert asked.headers["x-request-id"].startswith("me")
                assert "cookie" not in asked.headers
            (prefill,) = relayed.workers["prefill"][0].asked
            assert prefill.body["max_tokens"] == 1 and prefill.body["stream"] is False
            assert prefill.body["kv_transfer_params"]["do_remote_decode"] is True
            (entry,) = prefill.body["ec_transfer_params"].values()
            assert entry["item_indices"] == [0]

    run(work)


def test_text_completions_are_relayed_without_encoders() -> None:
    async def work() -> None:
        async with relaying("EPD") as relayed:
            status, answer = await relayed.post({"prompt": "a"}, path="/v1/completions")
            assert (status, json.loads(answer)) == (200, WHOLE)
            assert [len(worker.asked) for worker in relayed.all()] == [0, 1, 1]
            assert relayed.workers["prefill"][0].asked[0].path == "/v1/completions"

    run(work)


@pytest.mark.parametrize("count", [1, 8])
def test_media_bytes_go_upstream_once(count: int) -> None:
    async def work() -> None:
        async with relaying("EEPPDD") as relayed:
            body = pictures(*(data_url("A" * n) for n in range(count)))
            sent = len(json.dumps(body))
            status, _ = await relayed.post(body)
            assert status == 200
            received = sum(asked.size for worker in relayed.all() for asked in worker.asked)
            assert received <= 1.1 * sent
            assert relayed.metric("upstream_bytes_total") == received
            encodes = sum(len(worker.asked) for worker in relayed.workers["encode"])
            assert encodes == count

    run(work)


def test_a_picture_asked_for_at_the_same_time_is_encoded_once() -> None:
    async def work() -> None:
        async with relaying("EEPD") as relayed:
            for worker in relayed.workers["encode"]:
                worker.script = [slow]
            body = pictures(data_url("A"), data_url("A"), data_url("B"))
            answers = await asyncio.gather(*(relayed.post(body) for _ in range(4)))
            assert {status for status, _ in answers} == {200}
            assert sum(len(worker.asked) for worker in relayed.workers["encode"]) == 2
            entries = relayed.workers["decode"][0].asked[0].body["ec_transfer_params"]
            assert sorted(entry["item_indices"] for entry in entries.values()) == [[0, 1, 2]] or (
                sorted(entry["item_indices"] for entry in entries.values()) == [[0, 1], [2]]
            )

    run(work)


async def slow(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.1)
    await good(worker, asked, writer)


def test_encode_calls_are_bounded() -> None:
    async def work() -> None:
        async with relaying("EPD", "--encode-at-once", "2") as relayed:
            (encoder,) = relayed.workers["encode"]
            encoder.script = [slow] * 6
            await relayed.post(pictures(*(data_url("A" * n) for n in range(6))))
            assert len(encoder.asked) == 6
            assert encoder.connections == 2

    run(work)


def test_a_worker_that_takes_no_references_gets_the_media() -> None:
    async def work() -> None:
        async with relaying("EPD") as relayed:
            refusal = saying(b'{"error":{"message":"unknown part image_embeds"}}', status=400)
            (prefill,) = relayed.workers["prefill"]
            prefill.script = [refusal]
            for _ in range(2):
                status, _ = await relayed.post(pictures(data_url("A")))
                assert status == 200
            kinds = [a.body["messages"][0]["content"][0]["type"] for a in prefill.asked]
            assert kinds == ["image_embeds", "image_url", "image_url"]
            assert all("hash" in str(a.body["ec_transfer_params"]) for a in prefill.asked)

    run(work)


@pytest.mark.parametrize("role", ["encode", "prefill", "decode"])
@pytest.mark.parametrize("failure", [*FAILURES, *UNASKED])
def test_a_failing_worker_is_not_noticed(role: str, failure: str) -> None:
    async def work() -> None:
        async with relaying("EEPPDD") as relayed:
            for worker in relayed.workers[role]:
                worker.script = [{**FAILURES, **UNASKED}[failure]]
            for _ in range(3):
                status, answer = await relayed.post(pictures(data_url("A")))
                assert (status, json.loads(answer)) == (200, WHOLE)
            assert all(not worker.script for worker in relayed.workers[role])
            assert relayed.metric("upstream_failures_total") == 2
            assert relayed.metric("retries_total") >= 1
            if failure in UNASKED:
                await until(lambda: all(w.left == 1 for w in relayed.workers[role]))

    run(work)


@pytest.mark.parametrize("failure", STREAM_FAILURES)
def test_a_stream_that_does_not_begin_is_begun_elsewhere(failure: str) -> None:
    async def work() -> None:
        async with relaying("PDD") as relayed:
            for worker in relayed.workers["decode"]:
                worker.script = [STREAM_FAILURES[failure]]
            status, answer = await relayed.post(text(stream=True))
            assert (status, answer) == (200, b"".join(EVENTS) + DONE)
            assert relayed.metric("upstream_failures_total") == 2

    run(work)


@pytest.mark.parametrize(
    ("ending", "code"), [("drop", "upstream_error"), ("end", "upstream_error"),
                         ("hang", "deadline_exceeded")],
)  # fmt: skip
@pytest.mark.parametrize("half", [b"", b'data: {"choices":[{"ind'])
def test_a_stream_that_breaks_ends_with_one_error(ending: str, code: str, half: bytes) -> None:
    async def work() -> None:
        async with relaying("PD") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [streaming(*EVENTS[:2], *([half] if half else []), end=ending)]
            status, answer = await relayed.post(text(stream=True))
            assert status == 200
            *events, error, done, rest = answer.split(b"\n\n")
            assert [event + b"\n\n" for event in events] == EVENTS[:2]
            assert (done, rest) == (b"data: [DONE]", b"")
            assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == code
            assert await relayed.post(text()) == (200, json.dumps(WHOLE).encode())

    run(work)


def test_an_endless_stream_ends_at_the_deadline() -> None:
    async def endless(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await begin(writer)
        while True:
            await chunk(writer, EVENTS[0])
            await asyncio.sleep(0.01)

    async def work() -> None:
        async with relaying("D") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [endless]
            status, answer = await relayed.post(text(stream=True), {"x-request-timeout": "0.3"})
            assert status == 200 and answer.startswith(EVENTS[0] * 3)
            error = answer.split(b"\n\n")[-3].removeprefix(b"data: ")
            assert json.loads(error)["error"]["code"] == "deadline_exceeded"
            await until(lambda: decode.left == 1)

    run(work)


def test_an_answer_that_never_ends_is_cut_off() -> None:
    async def endless(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await begin(writer, "application/json")
        while True:
            await chunk(writer, b" " * 65536)

    async def work() -> None:
        async with relaying("DD", "--max-answer-bytes", "1000000") as relayed:
            for decode in relayed.workers["decode"]:
                decode.script = [endless]
            assert (await relayed.post(text()))[0] == 200
            await until(lambda: sum(w.left for w in relayed.workers["decode"]) == 2)

    run(work)


@pytest.mark.parametrize("role", ["encode", "prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_stage_it_is_in(role: str, stream: bool) -> None:
    async def work() -> None:
        async with relaying("EPD") as relayed:
            (worker,) = relayed.workers[role]
            worker.script = [hang]
            client = asyncio.create_task(relayed.post(pictures(data_url("A"), stream=stream)))
            await until(lambda: bool(worker.asked))
            client.cancel()
            await until(lambda: worker.left == 1)
            await until(lambda: relayed.relay.in_flight == 0)
            if role == "decode":
                await until(lambda: relayed.workers["prefill"][0].aborted == ["held"])
            assert relayed.metric("request_aborted_total") == 1

    run(work)


def test_a_client_that_leaves_a_stream_ends_it() -> None:
    async def work() -> None:
        async with relaying("PD") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [streaming(EVENTS[0])]
            response = await relayed.session.post(relayed.url + CHAT, json=text(stream=True))
            assert await response.content.readuntil(b"\n\n") == EVENTS[0]
            response.close()
            await until(lambda: decode.left == 1)
            assert relayed.workers["prefill"][0].aborted == []  # decode has taken the KV

    run(work)


def test_a_client_that_does_not_read_stops_its_worker_from_sending() -> None:
    sent = 0

    async def flood(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await begin(writer)
        event = b'data: {"choices":[],"x":"%b"}\n\n' % (b"x" * 65536)
        for _ in range(1000):
            await chunk(writer, event)
            sent += 1
        await chunk(writer, DONE)
        writer.write(b"0\r\n\r\n")

    async def work() -> None:
        async with relaying("D", "--stall-timeout", "5") as relayed:
            relayed.workers["decode"][0].script = [flood]
            response = await relayed.session.post(relayed.url + CHAT, json=text(stream=True))
            before = -1
            while before != sent:  # until nothing moves
                before = sent
                await asyncio.sleep(0.2)
            assert sent < 1000
            assert (await response.read()).endswith(DONE)
            assert sent == 1000

    run(work)


def test_a_clients_own_fault_is_told_in_the_workers_words() -> None:
    async def work() -> None:
        async with relaying("PPD") as relayed:
            fault = b'{"error": {"message": "too long", "code": 400, "param": "messages"}}'
            for worker in relayed.workers["prefill"]:
                worker.script = [saying(fault, status=400)]
            assert await relayed.post(text()) == (400, fault)
            assert sum(len(worker.asked) for worker in relayed.workers["prefill"]) == 1

    run(work)


def test_kv_that_decode_did_not_take_is_given_back() -> None:
    async def work() -> None:
        async with relaying("PD", "--max-retries", "0") as relayed:
            relayed.workers["decode"][0].script = [drop]
            status, answer = await relayed.post(text())
            assert status == 502 and json.loads(answer)["error"]["code"] == "upstream_error"
            await until(lambda: relayed.workers["prefill"][0].aborted == ["held"])

    run(work)


def test_a_breaker_keeps_a_failing_worker_out() -> None:
    async def work() -> None:
        flags = ("--breaker-failures", "2", "--breaker-cooldown", "0.4", "--max-retries", "0")
        async with relaying("D", *flags) as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [FAILURES["500"]] * 2
            assert [(await relayed.post(text()))[0] for _ in range(2)] == [502, 502]
            async with relayed.session.post(relayed.url + CHAT, json=text()) as response:
                assert response.status == 503 and int(response.headers["retry-after"]) >= 1
            assert len(decode.asked) == 2
            assert relayed.metric("instance_breaker_open") == 1
            await asyncio.sleep(0.5)
            assert [(await relayed.post(text()))[0] for _ in range(2)] == [200, 200]
            assert relayed.metric("instance_breaker_open") == 0

    run(work)


def test_a_refused_connection_keeps_what_prefill_has_done() -> None:
    async def work() -> None:
        async with relaying("PDD") as relayed:
            fleet = relayed.relay._fleet
            fleet.decode[0].url = "http://127.0.0.1:1"
            for _ in range(4):
                assert (await relayed.post(text()))[0] == 200
            assert len(relayed.workers["prefill"][0].asked) == 4
            assert relayed.metric("upstream_failures_total") >= 1

    run(work)


def test_a_full_proxy_says_so_at_once() -> None:
    async def work() -> None:
        async with relaying("D", "--max-in-flight", "1") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [hang]
            first = asyncio.create_task(relayed.post(text()))
            await until(lambda: bool(decode.asked))
            body = json.dumps(pictures(data_url("A"))).encode()
            async with relayed.session.post(relayed.url + CHAT, data=body) as response:
                assert response.status == 503 and response.headers["retry-after"] == "1"
                assert (await response.json())["error"]["code"] == "unavailable"
            first.cancel()
            await until(lambda: relayed.relay.in_flight == 0)
            assert (await relayed.post(text()))[0] == 200

    run(work)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[1]", 400), (b'{"stream": 3}', 400), (b"x" * 3_000_000, 413)],
)
def test_bad_requests(body: bytes, status: int) -> None:
    async def work() -> None:
        async with relaying("D", "--max-body-bytes", "2000000") as relayed:
            got, answer = await relayed.post(body)
            assert got == status and json.loads(answer)["error"]["message"]
            assert not relayed.workers["decode"][0].asked
            got, _ = await relayed.post(text(), {"x-request-timeout": "never"})
            assert got == 400

    run(work)


def test_one_connection_for_relayed_and_other_routes() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            host, port = relayed.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))

            async def ask(*pieces: bytes) -> tuple[bytes, bytes]:
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0.01)
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                return head.partition(b"\r\n")[0], await reader.readexactly(int(length))

            data = json.dumps(text()).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n"
            head %= len(data)
            line, answer = await ask(head + b"\r\n" + data)
            assert line.endswith(b"200 OK") and json.loads(answer) == WHOLE
            line, answer = await ask(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
            assert line.endswith(b"200 OK") and b"version" in answer
            line, answer = await ask(head[:9], head[9:] + b"\r\n", data[:5], data[5:])
            assert json.loads(answer) == WHOLE
            line, _ = await ask(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            assert b"404" in line
            line, _ = await ask(b"POST /", b"v1/ch", b"at HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"404" in line
            writer.write(head + b"expect: 100-continue\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            line, answer = await ask(data)
            assert json.loads(answer) == WHOLE
            writer.close()

    run(work)


def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            host, port = relayed.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            data = json.dumps(text(stream=True)).encode()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(data)
            )
            writer.write(data)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert b"chunked" not in head and body == b"".join(EVENTS) + DONE
            writer.close()

    run(work)


# Before our own workers, which speak vLLM's handshake too.


@dataclass
class Both:
    stack: Stack
    tokens: Process
    openai: Process
    mixed: Process
    workers: list[Process]


@pytest.fixture(scope="module")
def both(model_dir: ModelDir) -> Iterator[Both]:
    """The same workers behind a proxy of each dialect, and one that is left to find out."""
    with running(model_dir("qwen2_5_vl")) as stack:
        encode, prefill, decode = (
            stack.start(f"services.{name}") for name in ("encoder", "prefill", "decode")
        )
        for process in (encode, prefill, decode):
            process.wait_ready()
        stages = ([encode], [prefill], [decode])
        yield Both(
            stack,
            proxy(stack, *stages, "--dialect", "tokens"),
            proxy(stack, *stages, "--dialect", "openai"),
            proxy(stack, *stages),
            [encode, prefill, decode],
        )
        for process in (encode, prefill, decode):
            idle(process)
        assert set(stack.stop()) == {0}


def received(both: Both) -> list[int]:
    reports = [call(f"{worker.url}/integrity")[1]["counters"] for worker in both.workers]
    return [int(report.get("mm_received_bytes", 0)) for report in reports]


def test_both_dialects_give_the_same_tokens(both: Both) -> None:
    for case in picture_cases():
        expected = reference_generate(both.stack.model, case, 10, ignore_eos=True)
        for server in (both.openai, both.tokens, both.mixed):
            assert tokens(server, case, max_tokens=10, ignore_eos=True) == expected


def test_our_decode_fetches_what_the_relay_hands_over(both: Both) -> None:
    def fetched() -> int:
        report = call(f"{both.workers[2].url}/integrity")[1]
        return int(report["counters"]["kv_fetched"])

    before = fetched()
    tokens(both.openai, asking(picture(900), LONG), max_tokens=6)
    assert fetched() > before


def test_our_workers_are_known_by_probing(both: Both) -> None:
    """The proxy that found out by itself takes the tokens way: it can tokenize."""
    status, answer = call(f"{both.mixed.url}/tokenize", {"prompt": "hello"})
    assert status == 200 and answer["count"] >= 1
    relayed = "relayed_requests_in_flight"
    body = body_of(asking("Hello"), max_tokens=2)
    for server, used in ((both.mixed, 0), (both.openai, 1)):
        call(server.url + CHAT, body)
        assert (
            scrape(server, "client_bytes_total") > 0
            if used
            else (scrape(server, "client_bytes_total") == 0)
        )
        assert scrape(server, relayed) == 0


def scrape(server: Process, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith(f"triptych_proxy:{name}"))


def test_a_proxy_without_a_model_passes_on_what_workers_say(both: Both) -> None:
    status, models = call(f"{both.openai.url}/v1/models")
    assert status == 200 and models["data"][0]["id"] == "tiny"
    status, answer = call(f"{both.openai.url}/tokenize", {"prompt": "hello"})
    assert status == 200 and answer == call(f"{both.tokens.url}/tokenize", {"prompt": "hello"})[1]
    assert call(f"{both.openai.url}/health")[0] == 200
    status, schema = call(f"{both.openai.url}/openapi.json")
    assert status == 200 and CHAT in schema["paths"]
