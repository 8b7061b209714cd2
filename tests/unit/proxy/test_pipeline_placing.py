"""A scripted master before scripted workers: what is asked again, and what the master is told."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from protocol.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    PayloadTooLarge,
    RateLimited,
    TriptychError,
    Unauthorized,
    Unavailable,
)
from protocol.generate_answers import ChoiceBody
from protocol.types import GenerateRequest, MMItem
from proxy.fleet.fleet import NoWorker
from proxy.fleet.own_model import OwnModel, OwnModels
from proxy.placement.by_master import MasterPlanner
from proxy.placement.planner import ItemEnd, ModelNames
from proxy.tokens.pipeline import PipelineModel
from tests.support.scripted_master import Answer, Master, over, placed_by, taken
from tests.support.scripted_workers import (
    DONE,
    TOKENS,
    Worker,
    asking,
    event,
    steps_of,
)
from tests.support.waiting import eventually

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
        assert not any(request.retry for request in master.asked), "no worker has failed it"


async def test_workers_with_another_tokenizer_are_avoided_and_refused() -> None:
    master = Master(["d1", "d0"])
    async with placed_by(master, wrong := Worker(), Worker()) as (stack, pipeline):
        stack.fleet.own = OwnModels(OwnModel(("m",), "demo", "", "mine"))
        for instance, tokenizer in zip(stack.decode, ("other", "mine"), strict=True):
            instance.dialect, instance.tokenizer = "tokens", tokenizer
        stack.fleet.news()
        assert await taken(pipeline, asking("first")) == {0: TOKENS}
        assert master.asked[0].avoid == ["d0"] and not master.asked[0].retry
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
        planner.encoded("placed here", ItemEnd("a" * 64, 0.1, as_planned=True))
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
