"""A scripted master before scripted workers: what is asked again, and what the master is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
import pytest
from aiohttp import web

from protocol.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    NotServing,
    PayloadTooLarge,
    RateLimited,
    TriptychError,
    Unauthorized,
    Unavailable,
)
from protocol.generate import decode_encode
from protocol.generate_answers import ChoiceBody, EncodeAnswer
from protocol.placement import (
    FINISHED_PATH,
    SCHEDULE_PATH,
    Finished,
    FinishedReports,
    ItemPlacement,
    Placement,
    ScheduleRequest,
    Target,
)
from protocol.registry import SUSPECT_PATH, InstanceRole, LeaseAnswer
from protocol.types import EncodeOutput, GenerateRequest, MMItem
from proxy.assembly import make_core, make_own_view
from proxy.fleet.fleet import NoWorker
from proxy.fleet.fleet_watcher import FleetWatcher
from proxy.fleet.own_model import OwnModel, OwnModels
from proxy.placement.by_master import MasterPlanner
from proxy.placement.master_client import MasterClient, Reporter
from proxy.placement.planner import ModelNames
from proxy.tokens.pipeline import Pipeline, PipelineModel
from tests.support.scripted_workers import (
    DONE,
    TOKENS,
    Stack,
    Worker,
    asking,
    before,
    event,
    gather,
    steps_of,
)
from tests.support.waiting import eventually

Answer = TriptychError | str | bytes | None


@dataclass
class Master:
    """Answers questions one after the other: with an error, the id of a worker to decode, these
    bytes, or (None) never; then with worker d0."""

    answers: list[Answer] = field(default_factory=list)
    asked: list[ScheduleRequest] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    made_there: bool = False  # workers encode what they compute with
    held_at: str = ""  # who holds embeddings of all pictures

    async def schedule(self, request: web.Request) -> web.Response:
        wanted = msgspec.msgpack.decode(await request.read(), type=ScheduleRequest)
        self.asked.append(wanted)
        answer = self.answers.pop(0) if self.answers else "d0"
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, TriptychError):
            return web.json_response(answer.to_openai(), status=answer.status)
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        role: InstanceRole = "pdfusion" if self.made_there else "decode"
        target = Target(str(answer), "http://127.0.0.1:1", role)
        made = [ItemPlacement(item.mm_hash, "local") for item in wanted.items]
        if self.held_at:
            held = Target(self.held_at, "http://127.0.0.1:1", role)
            made = [ItemPlacement(item.mm_hash, "cached", held) for item in wanted.items]
        placement = Placement(wanted.request_id, target, encoders=made)
        return web.Response(body=msgspec.msgpack.encode(placement))

    async def over(self, request: web.Request) -> web.Response:
        self.finished += msgspec.msgpack.decode(await request.read(), type=FinishedReports).reports
        return web.Response(body=msgspec.msgpack.encode(LeaseAnswer()))

    async def heard(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.msgpack.encode(LeaseAnswer()))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post(SCHEDULE_PATH, self.schedule)
        app.router.add_post(FINISHED_PATH, self.over)
        app.router.add_post(SUSPECT_PATH, self.heard)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield "http://{}:{}".format(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()


@asynccontextmanager
async def placed_by(
    master: Master,
    *decode: Worker,
    own: OwnModels | None = None,
    encode: Sequence[Worker] = (),
) -> AsyncIterator[tuple[Stack, Pipeline]]:
    workers = before(decode=list(decode), encode=list(encode), own=own)
    async with master.serving() as url, workers as stack:
        gateway, fleet = stack.gateway, stack.fleet
        link = MasterClient([url], gateway.client)
        link.heard(url)
        following, reports = FleetWatcher(link, fleet), Reporter(link)
        for number, instance in enumerate(fleet.decode):
            instance.instance_id = f"d{number}"
            following.by_id[instance.instance_id] = instance
        alone = make_own_view(gateway.config, fleet, gateway.metrics)
        placing = MasterPlanner(fleet, link, following, reports, alone, gateway.metrics)
        telling = asyncio.create_task(reports.run())
        try:
            core = make_core(gateway.config, fleet, gateway.client, gateway.metrics, placing)
            yield stack, core.pipeline
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling


async def taken(
    pipeline: Pipeline, request: GenerateRequest, media: Mapping[str, bytes] = MappingProxyType({})
) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    async for outputs in pipeline.run(request, media):
        gather(outputs, found)
    return found


def over(master: Master) -> list[str]:
    return [report.request_id for report in master.finished if report.stage == "request"]


BUSY: list[Callable[[], TriptychError]] = [
    lambda: Unavailable("full", code="queue_full"),
    lambda: Unavailable("late", code="queue_timeout"),
    lambda: RateLimited("others first", code="preempted"),
    lambda: DeadlineExceeded("too late"),
]


@pytest.mark.parametrize("busy", BUSY)
async def test_a_fresh_request_is_refused_at_once(busy: Callable[[], TriptychError]) -> None:
    master = Master([busy()])
    async with placed_by(master, Worker()) as (_, pipeline):
        with pytest.raises(TriptychError) as refused:
            await taken(pipeline, asking())
        assert (refused.value.status, refused.value.code) == (busy().status, busy().code)
        assert len(master.asked) == 1


@pytest.mark.parametrize("busy", BUSY[:3])
async def test_a_request_that_has_begun_waits_for_room(busy: Callable[[], TriptychError]) -> None:
    async def dying(request: GenerateRequest) -> AsyncIterator[bytes]:
        yield steps_of(request)[0]

    master = Master(["d0", busy(), busy(), "d1"])
    async with placed_by(master, Worker(dying), Worker()) as (_, pipeline):
        assert await taken(pipeline, asking()) == {0: TOKENS}
        assert len(master.asked) == 4


@pytest.mark.parametrize(
    "answer",
    [
        InternalError("broken"),
        PayloadTooLarge("too long"),
        InvalidRequest("what?"),
        ModelNotFound("which?"),
        Unauthorized("who?"),
        Unavailable("nobody", code="no_worker"),
        Unavailable("nobody", code="no_decode"),
        b"nonsense",
        b"\x82\xaarequest_id\xa1r\xa6decode" + b"\x91" * 100_000,
        b"\x81\xa1x" + b"\x91" * 100_000,
    ],
)
async def test_a_master_that_cannot_say_is_done_without(answer: Answer) -> None:
    master = Master([answer])
    async with placed_by(master, Worker()) as (_, pipeline):
        assert await taken(pipeline, asking()) == {0: TOKENS}
        assert len(master.asked) == 1


async def test_of_several_models_a_master_is_asked_for_the_requests_own() -> None:
    """By the name that its workers give, with keys for their block size; one that the master does
    not know has no workers."""
    master = Master(["d1", ModelNotFound("which?")])
    three = OwnModels(*map(OwnModel, [("a",), ("nice", "b"), ("c",)]))
    async with placed_by(master, Worker(), Worker(), own=three) as (stack, pipeline):
        for instance, model, size in zip(stack.decode, ("a", "b"), (1, 2), strict=True):
            instance.model, instance.models = model, frozenset((model,))
            instance.block_size = size
        stack.fleet.news()
        for name in ("nice", "c"):
            served = PipelineModel(ModelNames(name, "keyed", "r", alone=False))
            steps = pipeline.run(asking(), {}, model=served)
            if name == "c":
                with pytest.raises(NoWorker):
                    await anext(steps)
            else:
                assert [output async for outputs in steps for output in outputs]
    assert [(one.model, one.block_size) for one in master.asked][:1] == [("b", 2)]
    assert master.asked[1].model == "c"


async def test_a_place_at_a_worker_not_known_yet_is_given_back_and_asked_for_again() -> None:
    master = Master(["new", "d0"])
    async with placed_by(master, Worker()) as (_, pipeline):
        assert await taken(pipeline, asking()) == {0: TOKENS}
        await eventually(lambda: len(over(master)) == 2)
        assert over(master) == [request.request_id for request in master.asked]
        assert len(set(over(master))) == 2


async def test_workers_with_another_tokenizer_are_avoided_and_refused() -> None:
    master = Master(["d1", "d0"])
    async with placed_by(master, wrong := Worker(), Worker()) as (stack, pipeline):
        stack.fleet.own = OwnModels(OwnModel(("m",), "demo", "", "mine"))
        for instance, tokenizer in zip(stack.decode, ("other", "mine"), strict=True):
            instance.dialect, instance.tokenizer = "tokens", tokenizer
        stack.fleet.news()
        assert await taken(pipeline, asking("first")) == {0: TOKENS}
        assert master.asked[0].avoid == ["d0"]
        with pytest.raises(Unavailable, match="--model") as caught:
            await taken(pipeline, asking("second"))
        assert caught.value.code == "wrong_tokenizer"
        await eventually(lambda: over(master) == ["first", "second"])
        stack.decode[1].tokenizer = "other"
        stack.fleet.news()
        with pytest.raises(Unavailable, match="--model"):
            await taken(pipeline, asking("third"))
        assert (len(master.asked), wrong.calls) == (2, []), "a master is not asked in vain"


async def test_of_several_models_only_the_one_with_another_tokenizer_is_refused() -> None:
    master = Master(["d0"])
    own = OwnModels(OwnModel(("a",), "demo", "", "mine"), OwnModel(("b",), "other", "", "theirs"))
    async with placed_by(master, Worker(), wrong := Worker(), own=own) as (stack, pipeline):
        for instance, model in zip(stack.decode, "ab", strict=True):
            instance.model, instance.models = model, frozenset((model,))
            instance.dialect, instance.tokenizer = "tokens", "mine"
        stack.fleet.news()
        served = {name: PipelineModel(ModelNames(name, name, alone=False)) for name in "ab"}
        with pytest.raises(Unavailable, match="that of other, with which") as caught:
            await anext(pipeline.run(asking(), {}, model=served["b"]))
        assert caught.value.code == "wrong_tokenizer" and not master.asked
        steps = pipeline.run(asking(), {}, model=served["a"])
        assert [output async for outputs in steps for output in outputs]
        assert [one.avoid for one in master.asked] == [["d1"]] and not wrong.calls


async def test_a_request_cancelled_while_it_is_placed_is_over() -> None:
    master = Master([None])
    async with placed_by(master, Worker()) as (_, pipeline):
        client = asyncio.create_task(taken(pipeline, asking()))
        await eventually(lambda: len(master.asked) == 1)
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        await eventually(lambda: over(master) == ["r"])


async def test_a_master_hears_only_of_requests_that_it_may_have_placed() -> None:
    """Ends of others, kept while it is away, would push out those that it waits for."""
    master = Master(["d0", InternalError("broken"), InvalidRequest("what?")])
    async with placed_by(master, Worker()) as (_, pipeline):
        planner = pipeline.planner
        assert isinstance(planner, MasterPlanner)
        link = planner._client
        assert await taken(pipeline, asking("placed there")) == {0: TOKENS}
        link.failed(link.url, InternalError("away"))
        assert await taken(pipeline, asking("placed here")) == {0: TOKENS}
        planner.stage_over("placed here", "encode", 0.1, "a" * 64)
        link.heard(link.url)
        # It may have placed this one before it broke.
        assert await taken(pipeline, asking("answered badly")) == {0: TOKENS}
        link.heard(link.url)
        assert await taken(pipeline, asking("not placed there")) == {0: TOKENS}
        assert await taken(pipeline, asking("last")) == {0: TOKENS}
        await eventually(lambda: "last" in over(master))
    told = {report.request_id for report in master.finished}
    assert told == {"placed there", "answered badly", "last"}
    assert not planner._at_masters


async def test_a_request_for_which_no_worker_is_left_is_over_too() -> None:
    """The master broke while it was asked, and the proxy finds no worker either."""
    master = Master([InternalError("broken")])
    async with placed_by(master, Worker()) as (stack, pipeline):
        planner = pipeline.planner
        assert isinstance(planner, MasterPlanner)
        stack.decode[0].up = False
        with pytest.raises(NoWorker):
            await taken(pipeline, asking())
        assert not planner._at_masters
        planner._client.heard(planner._client.url)
        await eventually(lambda: over(master) == ["r"])


async def test_a_request_that_breaks_once_it_is_placed_is_over() -> None:
    master = Master()
    async with placed_by(master, Worker()) as (_, pipeline):
        request = asking(mm_items=[MMItem("a", "image", 0, 1)], ec_transfer_params=[1])
        with pytest.raises(TypeError):
            async for _ in pipeline.run(request, {"a": b"picture"}):
                pass
        await eventually(lambda: over(master) == ["r"])


async def test_workers_at_fault_are_named() -> None:
    async def wrong(request: GenerateRequest) -> AsyncIterator[bytes]:
        yield event(request, ChoiceBody(0, [-1]))
        yield DONE

    master = Master(["d0", "d1"])
    async with placed_by(master, Worker(wrong), Worker()) as (_, pipeline):
        assert await taken(pipeline, asking()) == {0: TOKENS}
        await eventually(lambda: len(master.finished) == 2)
        assert [report.failed for report in master.finished] == [["d0"], []]


async def encodes(body: bytes) -> bytes:
    wanted = decode_encode(body)
    outputs = [EncodeOutput(wanted.request_id, item.mm_hash, {}) for item in wanted.items]
    return msgspec.json.encode(EncodeAnswer(outputs))


async def gone(body: bytes) -> web.Response:
    error = Unavailable("it ends", code=NotServing.code)
    return web.json_response(error.to_openai(), status=503)


async def failing(body: bytes) -> web.Response:
    return web.json_response(InternalError("broken").to_openai(), status=500)


async def full(body: bytes) -> web.Response:
    return web.json_response(Unavailable("full", code="queue_full").to_openai(), status=503)


@pytest.mark.parametrize("lost", ["before", "meanwhile"])
async def test_a_request_leaves_a_worker_that_is_gone_with_its_pictures(lost: str) -> None:
    """In a fleet whose workers do it all, a picture is encoded where its request is computed: no
    other place is looked for, so without that worker the whole request goes elsewhere."""

    async def waiting(request: GenerateRequest) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    master, name = Master(["d0", "d1"], made_there=True), "a" * 64
    first, second = Worker(waiting, encode=gone), Worker(encode=encodes)
    request = asking(mm_items=[MMItem(name, "image", 0, 1)])
    async with placed_by(master, first, second) as (stack, pipeline):
        stack.decode[0].up = lost == "meanwhile"
        assert await taken(pipeline, request, {name: b"picture"}) == {0: TOKENS}
        assert [one.avoid for one in master.asked] == [[], ["d0"]]
        await eventually(lambda: len(over(master)) == 2)
        assert [one.failed for one in master.finished if one.stage == "request"] == [["d0"], []]


@pytest.mark.parametrize("answer", [gone, full, failing])
async def test_a_worker_that_does_it_all_encodes_what_its_holder_does_not_give(
    answer: Callable[[bytes], Awaitable[web.Response]],
) -> None:
    master, name = Master(["d1"], made_there=True, held_at="d0"), "a" * 64
    request = asking(mm_items=[MMItem(name, "image", 0, 1)])
    async with placed_by(master, Worker(encode=answer), Worker(encode=encodes)) as (
        stack,
        pipeline,
    ):
        for worker in stack.decode:
            worker.does_all = True
        assert await taken(pipeline, request, {name: b"picture"}) == {0: TOKENS}
        assert len(master.asked) == 1


async def test_the_only_encoder_is_asked_once_and_then_the_worker_that_does_it_all() -> None:
    master, name = Master(["d0"]), "a" * 64
    request = asking(mm_items=[MMItem(name, "image", 0, 1)])
    workers = Worker(encode=encodes), Worker(encode=failing)
    async with placed_by(master, workers[0], encode=workers[1:]) as (stack, pipeline):
        stack.decode[0].does_all = True
        assert await taken(pipeline, request, {name: b"picture"}) == {0: TOKENS}
        await eventually(lambda: [len(worker.headers) for worker in workers] == [2, 1])
        await eventually(lambda: over(master) == ["r"])
        assert master.finished[-1].failed == []


async def test_a_request_that_waits_for_anothers_picture_blames_no_worker_of_its_own() -> None:
    """The encode that both wait for failed at the first one's worker."""
    asked, both_wait = asyncio.Event(), asyncio.Event()

    async def late(body: bytes) -> web.Response:
        asked.set()
        await both_wait.wait()
        return await failing(body)

    async def waiting(request: GenerateRequest) -> AsyncIterator[bytes]:
        if request.request_id == "b":
            both_wait.set()
        await asyncio.Event().wait()
        yield b""

    master, name = Master(["d0", "d1", "d1", "d1"], made_there=True), "a" * 64
    items = [MMItem(name, "image", 0, 1)]
    first, second = Worker(encode=late), Worker(encode=encodes)
    first.script = second.script = lambda request: waiting(request)
    async with placed_by(master, first, second) as (stack, pipeline):
        for worker in stack.decode:
            worker.does_all = True

        async def one(request_id: str) -> None:
            await taken(pipeline, asking(request_id, mm_items=items), {name: b"picture"})

        both = [asyncio.create_task(one("a"))]
        await asked.wait()
        both.append(asyncio.create_task(one("b")))
        await eventually(lambda: len(master.asked) == 4)
        assert sorted((one.avoid for one in master.asked[2:]), key=len) == [[], ["d0"]]
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
