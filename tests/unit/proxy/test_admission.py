"""The proxy's own queue: bounded, in order, fair when requests leave."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

import pytest

from protocol.errors import DeadlineExceeded, Unavailable
from proxy.admission import Admission, QueueLimits
from proxy.request_state import Caller, RequestState


class Crowd:
    """Requests that stay until they are let go."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.entered: list[str] = []
        self._go: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(
        self, name: str, priority: int = 0, left_s: float = 30.0, tenant: str = ""
    ) -> asyncio.Task[None]:
        self._go[name] = asyncio.Event()
        task = self.tasks[name] = asyncio.create_task(self._stay(name, priority, left_s, tenant))
        await settled()
        return task

    async def _stay(self, name: str, priority: int, left_s: float, tenant: str) -> None:
        state = RequestState(
            deadline=time.monotonic() + left_s, priority=priority, caller=Caller(tenant)
        )
        async with self.admission.admitted(state, 1.0):
            self.entered.append(name)
            await self._go[name].wait()

    @property
    def foreseen_s(self) -> float:
        """How long the next request to come will wait."""
        return self.admission._queue.foreseen_ms() / 1e3

    @property
    def refused(self) -> list[str]:
        ended = {name: task for name, task in self.tasks.items() if task.done()}
        return [name for name, task in ended.items() if task.exception() is not None]

    async def end(self, name: str) -> None:
        self._go[name].set()
        await self.tasks[name]
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await work()

    asyncio.run(bounded())


def test_those_who_wait_enter_by_priority_then_in_turn() -> None:
    async def work() -> None:
        crowd = Crowd(Admission(1, QueueLimits(queue=8, wait_s=60.0)))
        for name, priority in (("a", 0), ("b", 0), ("c", 0), ("d", -1)):
            await crowd.add(name, priority)
        assert crowd.entered == ["a"] and crowd.admission.waiting == 3
        for name in ("a", "d", "b", "c"):
            await crowd.end(name)
        assert crowd.entered == ["a", "d", "b", "c"]
        assert crowd.admission.under_way == crowd.admission.waiting == 0

    run(work)


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    async def work() -> None:
        crowd = Crowd(Admission(1, QueueLimits(queue=1, wait_s=60.0)))
        await crowd.add("a")
        await crowd.add("b")
        refused = await crowd.add("c")
        with pytest.raises(Unavailable) as error:
            await refused
        assert error.value.code == "queue_full" and (error.value.retry_after_s or 0) >= 1
        await crowd.end("a")
        await crowd.end("b")
        assert crowd.entered == ["a", "b"]

    run(work)


def test_a_wait_that_would_be_too_long_is_refused_before_it_begins() -> None:
    """The pace is learnt while there is a queue."""

    async def work() -> None:
        crowd = Crowd(Admission(1, QueueLimits(queue=100, wait_s=0.02)))
        names = [str(number) for number in range(20)]
        for name in names:
            await crowd.add(name)
        for name in names[:10]:
            await asyncio.sleep(0.01)
            await crowd.end(name)
        assert crowd.foreseen_s > 0.02
        refused = await crowd.add("late")
        with pytest.raises(Unavailable):
            await refused
        for name in names[10:]:
            await crowd.end(name)
        assert crowd.entered == names

    run(work)


def test_a_request_that_leaves_the_queue_keeps_no_other_waiting() -> None:
    """Also one that leaves in the moment in which its turn has come."""

    async def work() -> None:
        turn_given: list[asyncio.Task[None]] = []

        class Watched(Admission):
            """Its room is looked at again right after a turn is given, before its owner wakes."""

            @property
            def room(self) -> int:
                if turn_given and self.waiting == 1:
                    turn_given.pop().cancel()
                return 1

            @room.setter
            def room(self, room: int) -> None: ...

        crowd = Crowd(Watched(1, QueueLimits(queue=8, wait_s=60.0)))
        await crowd.add("a")
        gone = await crowd.add("b")
        unlucky = await crowd.add("c")
        await crowd.add("d")
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        turn_given.append(unlucky)
        await crowd.end("a")
        await asyncio.gather(unlucky, return_exceptions=True)
        await settled()
        assert crowd.entered == ["a", "d"] and not turn_given
        await crowd.end("d")
        assert crowd.admission.under_way == crowd.admission.waiting == 0

    run(work)


def test_waiting_ends_with_the_deadline_or_the_queues_own_limit() -> None:
    async def work() -> None:
        crowd = Crowd(Admission(1, QueueLimits(queue=8, wait_s=60.0, timeout_s=0.05)))
        await crowd.add("a")
        with pytest.raises(DeadlineExceeded):
            await (await crowd.add("b", left_s=0.01))
        with pytest.raises(Unavailable) as error:
            await (await crowd.add("c"))
        assert error.value.code == "queue_timeout"
        await crowd.end("a")
        assert crowd.admission.under_way == crowd.admission.waiting == 0

    run(work)


def test_without_a_worker_to_count_on_no_request_waits() -> None:
    """Refusing is then left to placement."""

    async def work() -> None:
        crowd = Crowd(Admission(1, QueueLimits()))
        await crowd.add("a")
        await crowd.add("b")
        crowd.admission.room = 0
        await crowd.add("c")
        assert sorted(crowd.entered) == ["a", "b", "c"]
        for name in "abc":
            await crowd.end(name)
        assert crowd.admission.under_way == crowd.admission.waiting == 0

    run(work)


def test_idle_time_says_nothing_of_the_pace() -> None:
    """Two requests after ten idle minutes, each of a tenth of a second."""

    async def work() -> None:
        now = [0.0]
        crowd = Crowd(Admission(1, QueueLimits(queue=8, wait_s=5.0), lambda: now[0]))
        for first, second in ("ab", "cd", "ef"):
            now[0] += 600.0
            await crowd.add(first)
            now[0] += 60.0
            await crowd.add(second)
            now[0] += 0.1
            await crowd.end(first)
            assert crowd.foreseen_s == pytest.approx(0.1)
            await crowd.end(second)
        for name in "ghi":
            await crowd.add(name)
        assert crowd.admission.waiting == 2 and not crowd.refused
        for name in "ghi":
            await crowd.end(name)

    run(work)


def test_a_pace_that_was_slow_is_learnt_anew() -> None:
    """However slow it was, somebody may wait, and by that wait it is corrected."""

    async def work() -> None:
        now = [0.0]
        crowd = Crowd(Admission(1, QueueLimits(queue=8, wait_s=5.0), lambda: now[0]))
        await crowd.add("0")
        await crowd.add("1")
        now[0] += 60.0
        await crowd.end("0")
        assert crowd.foreseen_s == 60.0
        for number in range(1, 50):
            await crowd.add(str(number + 1))
            assert crowd.admission.waiting == 1, number
            now[0] += 0.1
            await crowd.end(str(number))
        await crowd.add("51")
        await crowd.add("52")
        assert crowd.admission.waiting == 2 and not crowd.refused
        for name in ("50", "51", "52"):
            await crowd.end(name)

    run(work)


def test_room_that_grows_lets_in_who_waits() -> None:
    """When the queue is told of it, or a request comes; none has to leave for that."""

    async def work() -> None:
        crowd = Crowd(Admission(1, QueueLimits(queue=3, wait_s=60.0)))
        for name in "abcd":
            await crowd.add(name)
        assert crowd.entered == ["a"]
        crowd.admission.resize(3, math.inf)
        await settled()
        assert crowd.entered == ["a", "b", "c"]
        crowd.admission.room = 9
        await crowd.add("e")
        assert sorted(crowd.entered) == ["a", "b", "c", "d", "e"]
        assert not crowd.admission.waiting and not crowd.refused
        for name in "abcde":
            await crowd.end(name)

    run(work)


def test_who_waits_is_not_refused_for_a_worker_that_is_gone_for_a_moment() -> None:
    """A single broken connection takes the only worker out of choice until the next probe."""

    async def work() -> None:
        crowd = Crowd(Admission(1, QueueLimits(queue=3, wait_s=60.0)))
        for name in "abc":
            await crowd.add(name)
        crowd.admission.resize(0, math.inf, none_up=True)
        await crowd.end("a")
        await crowd.add("d")
        assert crowd.entered == ["a"] and crowd.admission.waiting == 3
        crowd.admission.resize(1, math.inf)
        await settled()
        assert crowd.entered == ["a", "b"]
        for name in "bcd":
            await crowd.end(name)
        crowd.admission.resize(0, math.inf, none_up=True)
        await crowd.add("e")
        assert crowd.entered[-1] == "e", "where none waits, that there is no worker is said at once"
        await crowd.end("e")
        assert crowd.admission.under_way == 0 and not crowd.refused

    run(work)


def test_a_tenant_leaves_room_while_another_asks() -> None:
    """Eight run at once, half of them for one tenant; what it asks beyond waits for its own."""

    async def work() -> None:
        limits = QueueLimits(queue=8, wait_s=60.0, tenant_share=0.5)
        crowd = Crowd(Admission(16, limits, at_once=8.0))
        await crowd.add("other", tenant="b")
        for number in range(6):
            await crowd.add(f"a{number}", tenant="a")
        assert crowd.entered == ["other", "a0", "a1", "a2", "a3"]
        await crowd.add("other 2", tenant="b")
        assert crowd.entered[-1] == "other 2", "the queue of one tenant does not stop another"
        await crowd.end("other")
        assert crowd.entered[-1] == "other 2", "another's place is not the tenant's"
        await crowd.end("a1")
        assert crowd.entered[-1] == "a4"
        for name in ("other 2", "a0", "a2", "a3", "a4", "a5"):
            await crowd.end(name)
        assert crowd.admission.under_way == 0

    run(work)


def test_a_tenant_alone_may_have_all() -> None:
    async def work() -> None:
        now = [0.0]
        limits = QueueLimits(queue=8, wait_s=60.0, tenant_share=0.25)
        admission = Admission(16, limits, lambda: now[0], at_once=8.0)
        crowd = Crowd(admission)
        for number in range(8):
            await crowd.add(f"a{number}", tenant="a")
        assert len(crowd.entered) == 8
        await crowd.add("other", tenant="b")
        await crowd.add("late", tenant="a")
        assert crowd.entered[-1] == "other"
        now[0] = 11.0  # no other tenant has asked for ten seconds
        await crowd.end("other")
        assert crowd.entered[-1] == "late"
        for name in (*(f"a{number}" for number in range(8)), "late"):
            await crowd.end(name)

    run(work)
