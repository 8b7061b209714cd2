"""Who is charged with a failure, and where the request goes next."""

import asyncio
import contextlib
import errno
import time
from collections.abc import Callable

import pytest

from protocol.errors import InvalidRequest, NotServing, TriptychError, Unavailable, UpstreamError
from proxy.dispatch import Dispatch, Retrying
from proxy.fleet.fleet import Fleet, NoWorker, WorkerUnknown
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.request_state import Tries
from proxy.upstream.failures import CallFailed, ProxyExhausted, unconnected

Fail = Callable[[], TriptychError]


class Site:
    """Decode workers that fail as they are told, by their place in the fleet."""

    def __init__(self, count: int, **retrying: float) -> None:
        self.fleet = Fleet()
        self.workers = [self.fleet.add(f"http://{i}:1", "decode") for i in range(count)]
        times = {"most": 3, "backoff_s": 0.0, "failover_s": 0.2, **retrying}
        most = int(times.pop("most"))
        self.dispatch = Dispatch(self.fleet, ProxyMetrics(self.fleet), Retrying(most, **times))
        self.fails: dict[int, list[Fail]] = {}
        self.asked: list[int] = []
        self.tries = Tries(deadline=time.monotonic() + 10)

    async def work(self, instance: Instance) -> str:
        number = self.workers.index(instance)
        self.asked.append(number)
        if fails := self.fails.get(number):
            raise fails.pop(0)()
        return "done"

    async def run(self, *, only_elsewhere: bool = False) -> str:
        def choose() -> Instance:
            return self.fleet.choose("decode", self.tries.avoid)

        return await self.dispatch.tried(
            self.tries, "decode", choose, self.work, only_elsewhere=only_elsewhere
        )

    def failures(self) -> list[int]:
        return [worker.breaker.failures for worker in self.workers]


def broken() -> TriptychError:
    return UpstreamError("broken")


def dropped() -> TriptychError:
    return CallFailed("gone", "dropped")


def refused() -> TriptychError:
    return CallFailed("gone", "refused", sent=False)


def silent() -> TriptychError:
    return CallFailed("gone", "silent")


def cut_off() -> TriptychError:
    return unconnected("http://0:1", OSError(errno.EHOSTUNREACH, "no route"))


def leaving() -> TriptychError:
    return NotServing("this worker takes no more requests")


async def test_a_worker_is_charged_if_another_one_does_better() -> None:
    site = Site(2)
    site.fails = {0: [broken]}
    assert await site.run() == "done"
    assert site.asked == [0, 1] and site.failures() == [1, 0]
    assert site.workers[0].suspect


async def test_what_fails_the_same_way_on_two_workers_is_charged_to_the_request() -> None:
    """Also where it comes back to the first one for want of others."""
    site = Site(3, most=3)
    site.fails = {number: [broken] * 9 for number in range(3)}
    with pytest.raises(UpstreamError):
        await site.run()
    assert sorted(set(site.asked)) == [0, 1, 2] and len(site.asked) == 4
    assert site.failures() == [0, 0, 0] and site.tries.take_blamed() == []


@pytest.mark.parametrize(("well_between", "left"), [(False, 2), (True, 1)])
async def test_only_its_own_charges_are_taken_back(well_between: bool, left: int) -> None:
    """Not those of other requests, before or after, also where it fails on further workers."""
    site = Site(3)
    first = site.workers[0]
    first.breaker.failed(0.0)
    with contextlib.suppress(UpstreamError), site.dispatch.calling(site.tries, first, "decode"):
        raise broken()
    if well_between:
        first.breaker.succeeded()
    first.breaker.failed(0.0)
    for other in site.workers[1:]:
        with contextlib.suppress(UpstreamError), site.dispatch.calling(site.tries, other, "decode"):
            raise broken()
    assert site.failures() == [left, 0, 0]


async def test_a_worker_is_forgiven_all_that_one_request_charged_it() -> None:
    site = Site(2)
    for number in (0, 0, 1):
        call = site.dispatch.calling(site.tries, site.workers[number], "decode")
        with contextlib.suppress(UpstreamError), call:
            raise broken()
    assert site.failures() == [0, 0]


async def test_two_ways_of_failing_are_two_workers_faults() -> None:
    site = Site(3)
    site.fails = {0: [broken], 2: [lambda: CallFailed("slow", "stalled", status=504)]}
    assert await site.run() == "done"
    assert site.failures() == [1, 0, 1]


async def test_a_request_does_not_come_back_to_a_worker_that_failed_it() -> None:
    """However busy the other is, and though it has not answered in time."""
    site = Site(2)
    site.workers[1].in_flight, site.workers[1].suspect = 50, True
    site.fails = {0: [lambda: Unavailable("full")] * 9}
    assert await site.run() == "done"
    assert site.asked == [0, 1] and site.failures() == [0, 0]


async def test_only_if_no_other_is_there_the_same_worker_is_asked_again() -> None:
    site = Site(1)
    site.fails = {0: [lambda: Unavailable("full")] * 2}
    assert await site.run() == "done"
    assert site.asked == [0, 0, 0]


@pytest.mark.parametrize("error", [dropped, refused, silent, cut_off, leaving])
async def test_a_worker_that_is_gone_gets_nothing_until_it_is_well_again(error: Fail) -> None:
    site = Site(2)
    site.fails = {0: [error] * 9}
    for _ in range(4):
        site.tries = Tries(deadline=time.monotonic() + 10)
        assert await site.run() == "done"
    assert site.asked.count(0) == 1
    assert await site.fleet.doubtful(0.0) == [site.workers[0]], "it is probed at once"
    assert await site.fleet.doubtful(0.0) == []


@pytest.mark.parametrize("error", [dropped, refused, silent, cut_off, leaving])
async def test_the_attempt_at_a_worker_that_is_gone_does_not_count(error: Fail) -> None:
    site = Site(3, most=1)
    site.fails = {0: [error], 2: [broken]}
    assert await site.run() == "done"
    assert site.asked == [0, 2, 1]


async def test_a_request_that_ends_its_workers_ends_few_of_them() -> None:
    site = Site(9, most=2)
    site.fails = {number: [dropped] for number in range(9)}
    with pytest.raises(CallFailed):
        await site.run()
    assert len(site.asked) == 4


async def test_a_request_that_lost_its_worker_waits_for_it_to_be_well_again() -> None:
    site = Site(1, failover_s=5.0)
    site.fails = {0: [leaving]}
    running = asyncio.create_task(site.run())
    (lost,) = await site.fleet.doubtful(5.0)
    await asyncio.sleep(0.05)
    assert not running.done()
    lost.answered()
    assert await running == "done"


async def test_so_does_work_that_is_done_only_elsewhere() -> None:
    site = Site(1, failover_s=5.0)
    site.fails = {0: [dropped]}
    running = asyncio.create_task(site.run(only_elsewhere=True))
    (lost,) = await site.fleet.doubtful(5.0)
    await asyncio.sleep(0.02)
    lost.answered()
    assert await running == "done"


async def test_work_done_only_elsewhere_is_not_tried_twice_at_one_worker() -> None:
    site = Site(2)
    site.fails = {number: [lambda: Unavailable("full")] * 9 for number in range(2)}
    with pytest.raises(Unavailable):
        await site.run(only_elsewhere=True)
    assert sorted(site.asked) == [0, 1]


async def test_many_failures_in_a_row_are_no_overflow() -> None:
    site = Site(1)
    site.tries.in_a_row = 5000
    site.fails = {0: [broken]}
    assert await site.run() == "done"


async def test_it_waits_so_long_and_no_longer() -> None:
    site = Site(1, failover_s=0.1)
    site.fails = {0: [leaving]}
    with pytest.raises(NoWorker):
        await site.run()


async def test_a_new_request_is_refused_at_once_if_no_worker_is_there() -> None:
    site = Site(1, failover_s=60.0)
    site.workers[0].up = False
    with pytest.raises(NoWorker):
        await site.run()


def unknown() -> WorkerUnknown:
    return WorkerUnknown("it has just come", retry_after_s=1.0)


async def test_a_place_at_a_worker_that_is_not_known_yet_takes_time_and_no_attempts() -> None:
    site = Site(1, failover_s=10.0)
    unheard = [unknown() for _ in range(5)]

    async def place() -> str:
        if unheard:
            raise unheard.pop()
        return "there"

    assert await site.dispatch.placed(site.tries, place) == "there"
    site.fails[0] = [broken] * 3
    assert await site.run() == "done", "it has all its attempts left"


async def test_a_worker_that_stays_unknown_is_not_waited_for_for_ever() -> None:
    site = Site(1, failover_s=0.05)

    async def place() -> str:
        raise unknown()

    with pytest.raises(WorkerUnknown):
        await site.dispatch.placed(site.tries, place)


async def test_no_retries_means_none() -> None:
    site = Site(2, most=0)
    site.fails = {0: [dropped]}
    with pytest.raises(CallFailed):
        await site.run()
    assert site.asked == [0]


@pytest.mark.parametrize(
    ("fail", "failed"),
    [
        (broken, True),
        (dropped, True),
        (refused, True),
        (leaving, True),
        (lambda: Unavailable("full", code="queue_full"), False),
        (lambda: ProxyExhausted("no sockets"), False),
    ],
)
def test_a_worker_that_is_full_has_not_failed_a_request(fail: Fail, failed: bool) -> None:
    site = Site(2)
    assert not site.tries.failed
    site.dispatch.failed(site.tries, site.workers[0], fail())
    assert site.tries.failed == failed


async def test_a_shortage_of_our_own_is_no_workers_fault() -> None:
    site = Site(2, most=5)
    site.fails = {0: [lambda: ProxyExhausted("no sockets")] * 2,
                  1: [lambda: ProxyExhausted("no sockets")] * 2}  # fmt: skip
    assert await site.run() == "done"
    assert site.failures() == [0, 0] and not any(worker.suspect for worker in site.workers)
    assert site.tries.avoid == []


async def test_the_clients_own_fault_is_tried_nowhere_else() -> None:
    site = Site(2)
    site.fails = {0: [lambda: InvalidRequest("no")]}
    with pytest.raises(InvalidRequest):
        await site.run()
    assert site.asked == [0] and site.failures() == [0, 0]


async def test_nothing_is_tried_again_after_the_deadline() -> None:
    site = Site(2)
    site.tries.deadline = time.monotonic()
    site.fails = {0: [broken]}
    with pytest.raises(UpstreamError):
        await site.run()
    assert site.asked == [0]


async def test_a_call_is_timed() -> None:
    site = Site(1)
    before = time.monotonic()
    call = site.dispatch.calling(site.tries, site.workers[0], "decode")
    with call:
        assert site.workers[0].in_flight == 1
        await asyncio.sleep(0.01)
        assert 0.0 < call.so_far_s <= time.monotonic() - before
    assert 0.0 < call.elapsed_s <= time.monotonic() - before
    assert site.workers[0].in_flight == 0 and site.workers[0].heard >= before


async def test_a_request_charges_the_only_worker_once_for_each_way_of_failing() -> None:
    """However often it is tried there: others are still served."""
    site = Site(1)
    late: Fail = lambda: CallFailed("slow", "stalled", status=504)  # noqa: E731
    for failures in ([broken] * 4, [broken, broken, late, late]):
        site.tries = Tries(deadline=time.monotonic() + 10)
        site.fails, site.asked = {0: list(failures)}, []
        with pytest.raises(UpstreamError):
            await site.run()
        assert site.asked == [0] * 4 and len(site.tries.take_blamed()) == len(set(failures))
    assert site.failures() == [3] and site.workers[0].breaker.closed


async def test_several_requests_that_fail_at_the_only_worker_open_its_breaker() -> None:
    site = Site(1)
    for _ in range(site.workers[0].breaker.threshold):
        site.tries = Tries(deadline=time.monotonic() + 10)
        site.fails = {0: [broken] * 4}
        with pytest.raises((UpstreamError, NoWorker)):
            await site.run()
    assert not site.workers[0].breaker.closed


async def test_a_worker_that_was_forgiven_is_not_charged_again() -> None:
    site = Site(2, most=2)
    site.fails = {number: [broken] * 9 for number in range(2)}
    with pytest.raises(UpstreamError):
        await site.run()
    assert len(site.asked) == 3 and site.failures() == [0, 0]
