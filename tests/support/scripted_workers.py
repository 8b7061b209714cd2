"""Workers that say what a test has them say, over real connections, and a pipeline before them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from protocol.generate import ABORT_PATH, ENCODE_PATH, GENERATE_PATH, decode_generate
from protocol.generate_answers import ChoiceBody, GenerateAnswer
from protocol.settings import resolve
from protocol.types import GenerateRequest, RequestOutput, SamplingParams
from proxy.assembly import make_core, make_own_view
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.fleet.from_flags import make_fleet
from proxy.fleet.own_model import OwnModels
from proxy.fleet.worker import Breaker, Instance
from proxy.gateway import Gateway
from proxy.metrics import ProxyMetrics
from proxy.upstream.client import UpstreamClient

TOKENS = [11, 12, 13, 14]
DONE = b"data: [DONE]\n\n"
WAYS = ("together", "handed", "ahead")
_T = TypeVar("_T")
Script = Callable[[GenerateRequest], AsyncIterator[bytes]]
Whole = Callable[[GenerateRequest], Awaitable[bytes | web.Response]]


def event(request: GenerateRequest, *choices: ChoiceBody) -> bytes:
    answer = GenerateAnswer(request.request_id, list(choices))
    return b"data: " + msgspec.json.encode(answer) + b"\n\n"


def steps_of(request: GenerateRequest) -> list[bytes]:
    """TOKENS for every choice, from where it stands, a token of each in an event."""
    names = list(request.emitted) or list(range(request.sampling.n))
    start = min(len(request.emitted.get(index, ())) for index in names)
    last = len(TOKENS) - 1
    return [
        event(request, *(ChoiceBody(i, [TOKENS[at]], "length" if at == last else None)
                         for i in names if len(request.emitted.get(i, ())) <= at))
        for at in range(start, len(TOKENS))
    ]  # fmt: skip


async def plainly(request: GenerateRequest) -> AsyncIterator[bytes]:
    for data in steps_of(request):
        yield data
    yield DONE


async def handing_over(request: GenerateRequest) -> bytes:
    """What prefill answers."""
    choices = [ChoiceBody(i, TOKENS[:1], "length") for i in range(request.sampling.n)]
    params = {"do_remote_prefill": True, "remote_request_id": request.request_id}
    answer = GenerateAnswer(request.request_id, choices, kv_transfer_params=params)
    return msgspec.json.encode(answer)


@dataclass
class Worker:
    """`calls`, their `headers`, `aborts` and `connections` are those that it has had; `left` counts
    streams that were not read to their end."""

    script: Script = plainly
    whole: Whole = handing_over
    encode: Callable[[bytes], Awaitable[bytes | web.Response]] | None = None
    calls: list[GenerateRequest] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    aborts: list[bytes] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    left: int = 0
    url: str = ""

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self._connected(request)
        wanted, stream = decode_generate(await request.read())
        self.calls.append(wanted)
        self.headers.append(request.headers)
        if not stream:
            answer = await self.whole(wanted)
            if isinstance(answer, web.Response):
                return answer
            return web.Response(body=answer, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        try:
            async for data in self.script(wanted):
                if not response.prepared:
                    await response.prepare(request)
                await response.write(data)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        return response

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborts.append(await request.read())
        return web.Response()

    async def _encode(self, request: web.Request) -> web.Response:
        assert self.encode is not None
        self.headers.append(request.headers)
        answer = await self.encode(await request.read())
        if isinstance(answer, web.Response):
            return answer
        return web.Response(body=answer, content_type="application/json")

    def _connected(self, request: web.Request) -> None:
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername"))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Worker"]:
        app = web.Application()
        app.router.add_post(ENCODE_PATH, self._encode)
        app.router.add_post(GENERATE_PATH, self._generate)
        app.router.add_post(ABORT_PATH, self._abort)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*runner.addresses[0][:2])
        try:
            yield self
        finally:
            await runner.cleanup()


@dataclass
class Counting(Breaker):
    """A breaker that counts its successes."""

    successes: int = 0

    def succeeded(self) -> None:
        super().succeeded()
        self.successes += 1


@dataclass
class Stack:
    """A proxy without a frontend before such workers."""

    gateway: Gateway
    fleet: Fleet

    @property
    def decode(self) -> list[Instance]:
        return self.fleet.decode

    def breaker(self, instance: Instance) -> Counting:
        found = instance.breaker
        assert isinstance(found, Counting)
        return found


@asynccontextmanager
async def before(
    *, decode: list[Worker], prefill: list[Worker] | None = None,
    encode: list[Worker] | None = None, flags: tuple[str, ...] = (),
    own: OwnModels | None = None,
) -> AsyncIterator[Stack]:  # fmt: skip
    stages = {"encode": encode or [], "prefill": prefill or [], "decode": decode}
    async with AsyncExitStack() as stack:
        lists: list[str] = []
        for role, workers in stages.items():
            urls = [(await stack.enter_async_context(worker.serving())).url for worker in workers]
            lists += [f"--{role}-servers-urls", ",".join(urls)]
        client = UpstreamClient(connect_timeout_s=5)
        stack.push_async_callback(client.close)
        config = resolve(ProxyConfig, [*lists, "--request-timeout", "10", *flags], {})
        fleet = make_fleet(config, own=own)
        for instance in fleet.all():
            instance.breaker = Counting(config.breaker_failures, config.breaker_cooldown)
        metrics = ProxyMetrics(fleet)
        planner = make_own_view(config, fleet, metrics)
        yield Stack(make_core(config, fleet, client, metrics, planner), fleet)


def asking(name: str = "r", n: int = 1, **more: Any) -> GenerateRequest:
    return GenerateRequest(name, [5, 6], SamplingParams(max_tokens=len(TOKENS), n=n), **more)


def gather(outputs: list[RequestOutput], found: dict[int, list[int]]) -> bool:
    """Whether any choice has ended."""
    for output in outputs:
        found.setdefault(output.index, []).extend(output.token_ids)
    return any(output.finish_reason is not None for output in outputs)


def fleet_of(way: str) -> dict[str, Any]:
    """One worker that does both, or prefill and decode, decode placed ahead of prefill or not."""
    stages = {"decode": [Worker()], "prefill": [Worker()]}
    return {"decode": stages["decode"]} if way == "together" else stages


def place_ahead(stack: Stack, way: str) -> None:
    for instance in stack.fleet.prefill:
        instance.kv_endpoint = {"do_remote_prefill": True} if way == "ahead" else None
