"""A worker that is told to stop, and what it keeps for others; drains that end."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from protocol.errors import InvalidRequest, NotServing, Unavailable
from services.engine.messages import Statistics
from services.http.lame_duck import LameDuck
from services.membership.registration import Changes
from services.worker.member import WorkerMember, handed_over
from services.worker.worker import Worker
from tests.support.waiting import eventually


@dataclass
class Engine:
    """`answers` in turn: how much is awaited, or what asking raises. The last one stays."""

    answers: list[int | Exception]
    outage: str = ""
    asked: int = 0

    async def statistics(self, **options: Any) -> Statistics:
        assert options["awaited"]
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Statistics(0, {}, {}, awaited=answer)


@dataclass
class Stopping:
    """What of a worker is looked at."""

    engine: Engine
    life: LameDuck = field(default_factory=lambda: LameDuck(0.0, 1000.0))
    in_flight: int = 0
    draining: bool = True
    drained_by_master: bool = False
    changes: Changes = field(default_factory=Changes)


async def over(worker: Stopping) -> None:
    await asyncio.wait_for(handed_over(cast(Worker, worker)), 5)


async def test_it_waits_until_others_have_all(caplog: pytest.LogCaptureFixture) -> None:
    worker = Stopping(Engine([2, Unavailable("a long step"), 1, 0]))
    await over(worker)
    assert worker.engine.asked == 4 and not caplog.records


def test_a_worker_without_its_engine_leaves_against_its_will() -> None:
    for outage in ("", "the engine of this worker has ended"):
        worker = Stopping(Engine([0], outage))
        assert WorkerMember(cast(Worker, worker), "http://w:1").failed == bool(outage)


async def test_requests_under_way_may_leave_something_to_fetch() -> None:
    worker = Stopping(Engine([0]), in_flight=1)
    waiting = asyncio.create_task(over(worker))
    await eventually(lambda: worker.engine.asked > 1)
    assert not waiting.done()
    worker.in_flight = 0
    await waiting


async def test_it_waits_no_longer_than_it_may(caplog: pytest.LogCaptureFixture) -> None:
    await over(Stopping(Engine([1]), LameDuck(0.0, 0.01)))
    assert "before others have fetched" in caplog.text


async def test_without_an_engine_nothing_can_be_fetched() -> None:
    await over(Stopping(Engine([1], outage="it has ended")))
    worker = Stopping(Engine([1]))

    async def ends(**options: Any) -> Statistics:
        worker.engine.outage = "it has ended"
        raise NotServing("it has ended")

    worker.engine.statistics = ends  # type: ignore[method-assign]
    await over(worker)


def test_a_drain_is_ended_by_who_has_begun_it() -> None:
    worker = Stopping(Engine([0]))
    Worker.undrain(cast(Worker, worker))
    assert not worker.draining
    worker.draining = worker.drained_by_master = True
    with pytest.raises(InvalidRequest, match="master"):
        Worker.undrain(cast(Worker, worker))
    assert worker.draining
    worker.drained_by_master = False
    worker.life.signal()
    with pytest.raises(InvalidRequest, match="stop"):
        Worker.undrain(cast(Worker, worker))
