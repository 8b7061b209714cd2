"""Placements that many requests ask for at the same time."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from protocol.errors import (
    DeadlineExceeded,
    ErrorInfo,
    InvalidRequest,
    RateLimited,
    TriptychError,
    Unavailable,
    UpstreamError,
)
from protocol.placement import (
    MOST_AT_ONCE,
    SCHEDULES_PATH,
    Finished,
    Placement,
    Scheduled,
    ScheduleRequest,
    ScheduleRequests,
    ScheduleResult,
    Target,
)
from proxy.placement.batches import _MOST_KEYS, Batches
from proxy.placement.master_client import MasterAway

DECODE = Target("d", "http://d:1", "decode")


def placed(request: ScheduleRequest) -> ScheduleResult:
    return ScheduleResult(Placement(request.request_id, DECODE))


class Master:
    """Answers each call once it is `open`, all of it but the `lost` last results."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.reports: list[Finished] = []
        self.answer: Callable[[ScheduleRequest], ScheduleResult] = placed
        self.error: Exception | None = None
        self.lost = 0
        self.open = asyncio.Event()
        self.open.set()

    async def post(
        self, path: str, body: ScheduleRequests, kind: type[Scheduled], deadline: float
    ) -> Scheduled:
        assert path == SCHEDULES_PATH and deadline > time.monotonic()
        self.calls.append([one.request_id for one in body.requests])
        await self.open.wait()
        if self.error is not None:
            raise self.error
        results = [self.answer(one) for one in body.requests]
        return kind(results[: len(results) - self.lost])

    def add(self, report: Finished) -> None:
        self.reports.append(report)


@pytest.fixture
def master() -> Master:
    return Master()


@pytest.fixture
def batches(master: Master) -> Batches:
    return Batches(master, master)  # type: ignore[arg-type]


def ask(
    batches: Batches, name: str, keys: int = 0, seconds: float = 60.0
) -> asyncio.Task[Placement | None]:
    request = ScheduleRequest(name, 10, block_keys=list(range(keys)))
    return asyncio.create_task(batches.place(request, time.monotonic() + seconds))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_after_the_other_each_is_asked_for_at_once(
    master: Master, batches: Batches
) -> None:
    for name in ("a", "b"):
        found = await ask(batches, name)
        assert found is not None and found.request_id == name
    assert master.calls == [["a"], ["b"]]


async def test_those_that_come_while_a_call_is_under_way_share_the_next(
    master: Master, batches: Batches
) -> None:
    master.open.clear()
    first = ask(batches, "a")
    await turns()
    names = [f"r{number}" for number in range(MOST_AT_ONCE + 5)]
    others = [ask(batches, name) for name in names]
    await turns()
    assert master.calls == [["a"]]
    master.open.set()
    found = await asyncio.gather(first, *others)
    assert [one.request_id for one in found if one] == ["a", *names]
    assert [len(call) for call in master.calls] == [1, MOST_AT_ONCE, 5]


async def test_long_prompts_are_not_sent_all_in_one_call(master: Master, batches: Batches) -> None:
    half = _MOST_KEYS // 2
    prompts = {"a": half, "b": half, "c": 1, "d": 3 * half, "e": 1}
    await asyncio.gather(*(ask(batches, name, keys) for name, keys in prompts.items()))
    assert master.calls == [["a", "b"], ["c"], ["d"], ["e"]]


async def test_what_is_wrong_with_one_is_told_to_that_one(master: Master, batches: Batches) -> None:
    full = ScheduleResult(None, ErrorInfo(429, "too many", "rate_limited"), 2.5)
    master.answer = lambda one: full if one.request_id == "b" else placed(one)
    found = await asyncio.gather(*(ask(batches, name) for name in "abc"), return_exceptions=True)
    error = found[1]
    assert isinstance(error, RateLimited) and error.retry_after_s == 2.5
    assert isinstance(found[0], Placement) and isinstance(found[2], Placement)


async def test_a_master_that_failed_with_one_may_have_placed_it(
    master: Master, batches: Batches
) -> None:
    broken = ScheduleResult(None, ErrorInfo(500, "broken", "internal_error"))
    master.answer = lambda one: broken if one.request_id == "b" else placed(one)
    found = await asyncio.gather(*(ask(batches, name) for name in "ab"), return_exceptions=True)
    assert isinstance(found[0], Placement) and isinstance(found[1], MasterAway)


async def test_where_requests_wait_for_workers_each_asks_for_itself(
    master: Master, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    master.answer = lambda one: ScheduleResult() if one.request_id == "b" else placed(one)
    found = await asyncio.gather(*(ask(batches, name) for name in "ab"))
    assert found[0] is not None and found[1] is None
    assert await ask(batches, "c") is None and len(master.calls) == 1
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 1.1)
    assert await ask(batches, "d") is not None


@pytest.mark.parametrize(("status", "seconds"), [(404, 61.0), (405, 61.0), (400, 1.0), (413, 1.0)])
async def test_a_master_that_does_not_take_them_together_is_asked_for_each(
    master: Master, batches: Batches, monkeypatch: pytest.MonkeyPatch, status: int, seconds: float
) -> None:
    """An older one for a minute; one that finds fault with a request for a second."""
    error = TriptychError("no")
    error.status = status
    master.error = error
    assert await asyncio.gather(*(ask(batches, name) for name in "ab")) == [None, None]
    assert len(master.calls) == 1
    master.error = None
    now = time.monotonic
    for later, taken in ((seconds - 0.5, False), (seconds + 0.5, True)):
        monkeypatch.setattr(time, "monotonic", lambda later=later: now() + later)
        assert (await ask(batches, "c") is not None) == taken


@pytest.mark.parametrize(
    ("error", "lost", "told"),
    [
        (Unavailable("away"), 0, Unavailable),
        (ValueError("a mistake of ours"), 0, UpstreamError),
        (None, 1, UpstreamError),
    ],
)
async def test_a_call_that_fails_is_told_to_all_of_it(
    master: Master, batches: Batches, error: Any, lost: int, told: type[Exception]
) -> None:
    """As is an answer that lacks some results."""
    master.error, master.lost = error, lost
    found = await asyncio.gather(*(ask(batches, name) for name in "ab"), return_exceptions=True)
    assert [type(one) for one in found] == [told, told]
    master.error, master.lost = None, 0
    assert await ask(batches, "c") is not None


async def test_what_is_wrong_with_the_only_one_is_told_to_it(
    master: Master, batches: Batches
) -> None:
    master.error = InvalidRequest("no")
    with pytest.raises(InvalidRequest, match="no"):
        await ask(batches, "a")


async def test_each_waits_until_its_own_deadline(master: Master, batches: Batches) -> None:
    """Of those that share a call, and of one that has not been sent."""
    master.open.clear()
    patient = ask(batches, "patient")
    hasty = [ask(batches, "sent", seconds=0.05)]
    await turns()
    hasty.append(ask(batches, "waiting", seconds=0.05))
    found = await asyncio.gather(*hasty, return_exceptions=True)
    assert [type(one) for one in found] == [DeadlineExceeded, DeadlineExceeded]
    master.open.set()
    assert await patient is not None
    assert master.calls == [["patient", "sent"]]
    assert master.reports == [Finished("sent", aborted=True)]


async def test_a_request_that_ends_is_not_asked_for_or_given_back(
    master: Master, batches: Batches
) -> None:
    master.open.clear()
    sent = ask(batches, "sent")
    await turns()
    waiting, last = ask(batches, "waiting"), ask(batches, "last")
    await turns()
    for one in (sent, waiting):
        one.cancel()
    await turns()
    master.open.set()
    assert await last is not None
    assert master.calls == [["sent"], ["last"]]
    assert master.reports == [Finished("sent", aborted=True)]
