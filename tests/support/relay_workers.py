"""Workers that follow a script, and a proxy that relays to them, all in the test's process."""

import asyncio
import base64
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from protocol.settings import resolve
from proxy.app import create_app
from proxy.assembly import make_core, make_own_view
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.fleet.from_flags import make_fleet
from proxy.gateway import Gateway
from proxy.metrics import ProxyMetrics
from proxy.placement.own_view import OwnView
from proxy.placement.planner import Planner
from proxy.relay.relay import Relay
from proxy.relay.serving import connection_class
from proxy.upstream.client import UpstreamClient
from services.frontend.models import Models
from services.frontend.render import Frontend
from tests.support.prefixed import Prefixed

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
    method: str = "POST"


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
    closed: int = 0

    async def respond(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        behave = self.script.pop(0) if self.script else good
        await behave(self, asked, writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        plain = reader
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = await read_request(reader)
                if asked.path.endswith("/abort_requests"):
                    self.aborted += asked.body["request_ids"]
                    await send(writer, b"{}")
                    continue
                self.asked.append(asked)
                work = asyncio.ensure_future(self.respond(asked, writer))
                gone = asyncio.ensure_future(plain.read(1))
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
                reader = Prefixed(plain, gone)  # type: ignore[assignment]
        self.closed += 1
        writer.close()


async def read_request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    form = headers.get("content-type", "").startswith("multipart/")
    said = body if form or not body else json.loads(body)
    method, path, _ = head[0].split()
    return Asked(path, headers, said or None, len(body), method)


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
    if (asked.body or {}).get("stream"):
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


@dataclass
class Relayed:
    """A relay on a port of its own before scripted workers."""

    url: str
    workers: dict[str, list[Worker]]
    gateway: Gateway
    relay: Relay
    metrics: ProxyMetrics
    session: aiohttp.ClientSession
    server: ServerState

    @property
    def in_flight(self) -> int:
        """Requests in the proxy."""
        return self.gateway.in_flight.count

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
    "--dialect", "openai", "--retry-backoff", "0.001", "--breaker-failures", "100",
    "--request-timeout", "20",
)  # fmt: skip


def timeouts(seconds: float) -> tuple[str, ...]:
    """All flags that bound a stage."""
    stages = ("encode", "prefill", "first-token", "decode", "stall")
    return tuple(word for stage in stages for word in (f"--{stage}-timeout", str(seconds)))


HURRIED = timeouts(0.5)
"""For workers that hang, and for no others: a busy machine may stop them for as long."""


def later(gateway: Gateway) -> ASGIApp:
    """The application behind the relay, made for the first request that the relay leaves to it:
    making it takes longer than most tests, of which few have such requests."""
    made = functools.cache(lambda: create_app(gateway))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await made()(scope, receive, send)

    return app


async def finding_well(fleet: Fleet) -> None:
    """What probes do for workers that are well after all."""
    while True:
        for instance in await fleet.doubtful(60.0):
            instance.answered()
        fleet.news()


@contextlib.asynccontextmanager
async def relaying(
    topology: str,
    *flags: str,
    kind: Callable[[str], Worker] = Worker,
    planning: Callable[[OwnView], Planner] = lambda alone: alone,
    frontend: Frontend | None = None,
) -> AsyncIterator[Relayed]:
    """`topology` has a letter per worker of this kind: E, P, D. `planning` makes what plans of what
    plans without a master."""
    names = {"E": "encode", "P": "prefill", "D": "decode"}
    workers: dict[str, list[Worker]] = {name: [] for name in names.values()}
    async with contextlib.AsyncExitStack() as stack:
        for letter in topology:
            worker = kind(names[letter])
            server = await asyncio.start_server(worker.serve, "127.0.0.1", 0, limit=1 << 26)
            worker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            stack.callback(server.close)
            workers[names[letter]].append(worker)
        urls = [
            word
            for name in names.values()
            for word in (f"--{name}-servers-urls", ",".join(w.url for w in workers[name]) or "none")
        ]
        config = resolve(ProxyConfig, [*FLAGS, *timeouts(10.0), *flags, *urls], {})
        fleet = make_fleet(config)
        metrics = ProxyMetrics(fleet)
        client = UpstreamClient(2.0, probe_timeout_s=20.0, authorization=config.authorization)
        stack.push_async_callback(client.close)
        planner = planning(make_own_view(config, fleet, metrics))
        models = None if frontend is None else Models([frontend])
        gateway = make_core(config, fleet, client, metrics, planner, models)
        stack.callback(gateway.pools.close)
        relay = Relay(gateway)
        stack.push_async_callback(relay.close)
        state = ServerState()
        protocol = functools.partial(
            connection_class(relay), uvicorn.Config(later(gateway), log_config=None), state, {}
        )
        listener = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        stack.callback(listener.close)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        session = await stack.enter_async_context(aiohttp.ClientSession())
        probing = asyncio.create_task(finding_well(fleet))
        stack.callback(probing.cancel)
        yield Relayed(url, workers, gateway, relay, metrics, session, state)


def text(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}


def pictures(*urls: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": "m", "messages": [{"role": "user", "content": parts}], **more}


def data_url(name: str) -> str:
    return f"data:image/png;base64,{PICTURE}{name}"
