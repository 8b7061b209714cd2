"""The proxy's stages before scripted workers, where the order of events is what matters."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from aiohttp import web

from protocol.generate import ENCODE_PATH, GENERATE_PATH, decode_encode, decode_generate
from protocol.generate_answers import ChoiceBody, EncodeAnswer, GenerateAnswer
from protocol.settings import resolve
from protocol.types import EncodeItem, EncodeOutput, GenerateRequest, MMItem, SamplingParams
from proxy.assembly import make_core, make_own_view
from proxy.config import ProxyConfig
from proxy.fleet.from_flags import make_fleet
from proxy.metrics import ProxyMetrics
from proxy.tokens.pipeline import Pipeline
from proxy.upstream.client import UpstreamClient
from tests.support.waiting import eventually

_T = TypeVar("_T")


class Workers:
    """One encoder that answers when `encoded` is set, one decode worker that answers unless
    `generating` is cleared."""

    def __init__(self) -> None:
        self.encoded = asyncio.Event()
        self.generating = asyncio.Event()
        self.generating.set()
        self.asked: list[EncodeItem] = []
        self.holders: list[str] = []
        self.dropped = 0

    async def encode(self, request: web.Request) -> web.Response:
        wanted = decode_encode(await request.read())
        self.asked += wanted.items
        self.holders.append(wanted.holder)
        try:
            await self.encoded.wait()
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        outputs = [EncodeOutput(wanted.request_id, i.mm_hash, {}) for i in wanted.items]
        return web.Response(body=msgspec.json.encode(EncodeAnswer(outputs)))

    async def generate(self, request: web.Request) -> web.Response:
        await self.generating.wait()
        name = decode_generate(await request.read())[0].request_id
        answer = GenerateAnswer(name, [ChoiceBody(0, [7], "length")])
        body = b"data: " + msgspec.json.encode(answer) + b"\n\ndata: [DONE]\n\n"
        return web.Response(body=body, content_type="text/event-stream")

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[Pipeline]:
        app = web.Application()
        app.router.add_post(ENCODE_PATH, self.encode)
        app.router.add_post(GENERATE_PATH, self.generate)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = "http://{}:{}".format(*runner.addresses[0][:2])
        client = UpstreamClient(connect_timeout_s=5)
        flags = ["--encode-servers-urls", url, "--decode-servers-urls", url]
        config = resolve(ProxyConfig, [*flags, "--request-timeout", "60"], {})
        fleet = make_fleet(config)
        try:
            metrics = ProxyMetrics(fleet)
            planner = make_own_view(config, fleet, metrics)
            yield make_core(config, fleet, client, metrics, planner).pipeline
        finally:
            await client.close()
            await runner.cleanup()


def asking(request_id: str, mm_hash: str, grid: tuple[int, ...] = ()) -> GenerateRequest:
    item = MMItem(mm_hash, "image", 0, 1, grid)
    return GenerateRequest(request_id, [5], SamplingParams(max_tokens=1), [item])


async def tokens(
    pipeline: Pipeline, request_id: str, mm_hash: str = "a" * 64, grid: tuple[int, ...] = ()
) -> list[int]:
    steps = pipeline.run(asking(request_id, mm_hash, grid), {mm_hash: b"picture"})
    return [token async for outputs in steps for out in outputs for token in out.token_ids]


def run(work: Callable[[], Awaitable[_T]]) -> _T:
    async def bounded() -> _T:
        async with asyncio.timeout(60):
            return await work()

    return asyncio.run(bounded())


def test_an_encoder_slower_than_prefill_is_still_heard() -> None:
    """The embedding may reach prefill before the encoder's answer reaches the proxy: the answer is
    waited for, so that the picture's bytes are not sent again."""

    async def work() -> None:
        workers = Workers()
        async with workers.pipeline() as pipeline:
            assert await tokens(pipeline, "1") == [7]
            await eventually(lambda: len(workers.asked) == 1)
            workers.encoded.set()
            await eventually(lambda: not pipeline.stages.encode_stage.busy)
            assert await tokens(pipeline, "2") == [7]
            await eventually(lambda: len(workers.asked) == 2)
        assert [item.data for item in workers.asked] == [b"picture", None]

    run(work)


def test_a_client_that_leaves_ends_its_encode_call() -> None:
    async def work() -> None:
        workers = Workers()
        workers.generating.clear()
        async with workers.pipeline() as pipeline:
            client = asyncio.create_task(tokens(pipeline, "1"))
            await eventually(lambda: len(workers.asked) == 1)
            client.cancel()
            await eventually(lambda: workers.dropped == 1)
            assert not pipeline.stages.encode_stage.busy

    run(work)


def test_requests_that_share_a_picture_send_it_once_and_ask_each_for_itself() -> None:
    """The encoder keeps an entry for every request that has asked, so that each one that has joined
    asks once more, without bytes, when the first has its answer."""

    async def work() -> None:
        workers = Workers()
        async with workers.pipeline() as pipeline:
            encoding = pipeline.stages.encode_stage
            clients = [asyncio.create_task(tokens(pipeline, name)) for name in ("1", "2", "3")]
            assert await asyncio.gather(*clients) == [[7]] * 3
            assert workers.holders == ["1"] and encoding.busy
            workers.encoded.set()
            await eventually(lambda: len(workers.asked) == 3 and not encoding.busy)
            assert [item.data for item in workers.asked] == [b"picture", None, None]
            assert sorted(workers.holders) == ["1", "2", "3"]

    run(work)


def test_pictures_of_one_name_and_two_sizes_are_not_shared() -> None:
    """The encoder says whether it has the same for both."""

    async def work() -> None:
        workers = Workers()
        async with workers.pipeline() as pipeline:
            grids = [(1, 2, 6), (1, 6, 2)]
            names = zip(("1", "2"), grids, strict=True)
            clients = [tokens(pipeline, name, grid=grid) for name, grid in names]
            assert await asyncio.gather(*clients) == [[7]] * 2
            await eventually(lambda: len(workers.asked) == 2)
            workers.encoded.set()
            await eventually(lambda: not pipeline.stages.encode_stage.busy)
            assert sorted(item.grid for item in workers.asked) == grids
            assert [item.data for item in workers.asked] == [b"picture"] * 2

    run(work)


def test_a_shared_picture_is_encoded_as_long_as_one_request_waits_for_it() -> None:
    async def work() -> None:
        workers = Workers()
        workers.generating.clear()
        async with workers.pipeline() as pipeline:
            encoding = pipeline.stages.encode_stage
            first = asyncio.create_task(tokens(pipeline, "1"))
            await eventually(lambda: len(workers.asked) == 1)
            (flight,) = encoding._flights._flights.values()
            others = [asyncio.create_task(tokens(pipeline, name)) for name in ("2", "3")]
            await eventually(lambda: flight.waiters == 3)
            for client in (first, others[0]):
                client.cancel()
            await eventually(lambda: flight.waiters == 1)
            assert encoding.busy and workers.dropped == 0
            others[1].cancel()
            await eventually(lambda: workers.dropped == 1 and not encoding.busy)
            assert workers.holders == ["1"]

    run(work)


def test_an_encoder_hears_of_every_picture_at_once() -> None:
    """Its store may have no room for the first ones before a consumer has come for the last."""

    async def work() -> None:
        workers = Workers()
        workers.generating.clear()
        async with workers.pipeline() as pipeline:
            names = [f"{i:064}" for i in range(200)]
            clients = [asyncio.create_task(tokens(pipeline, name, name)) for name in names]
            await eventually(lambda: len(workers.asked) == len(names), bound_s=50)
            workers.encoded.set()
            workers.generating.set()
            assert await asyncio.gather(*clients) == [[7]] * len(names)

    run(work)
