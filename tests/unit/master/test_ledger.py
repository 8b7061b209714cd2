"""What is counted: not placements that fail half-way, nor twice, nor successes that were none."""

import asyncio
from typing import Any

import pytest

from protocol.errors import InternalError, InvalidRequest, Unavailable
from protocol.kv_events import EmbeddingStored
from protocol.placement import Finished, MediaNeed, Placement, ScheduleRequest
from protocol.registry import Heartbeat, Load, Rates
from services.admission.ticket import Ticket
from services.master.api.service import MasterService
from services.master.config import MasterConfig
from services.master.listener import MasterListener
from services.master.master import Master
from services.master.placement.refusals import AllBusy
from services.master.placement.reservation import Reservation
from services.master.placement.waiting import PlacementTicket
from tests.support.master_fleets import LOAD, RATES, add, asking, hear, master, picture, place

COUNTED = ("requests", "queued_tokens", "context_tokens", "free_blocks", "send_until", "busy_until")


def books(made: Master) -> dict[str, list[float]]:
    """Everything that placements change, by pool and column."""
    pools = made.registry.fleet("m").pools
    return {f"{k}.{c}": getattr(p, c).tolist() for k, p in pools.items() for c in COUNTED}


class Failing(MasterListener):
    """Telling others of a placement breaks down once `fails`."""

    fails = False

    def placed(self, request: ScheduleRequest, held: Reservation, now_ms: float) -> None:
        if self.fails:
            raise OverflowError("placed")


@pytest.mark.parametrize("key", [-1, 1 << 64])
def test_a_block_key_that_is_none_is_a_bad_request(key: int) -> None:
    made = master("prefill", "decode")
    with pytest.raises(InvalidRequest) as caught:
        made.schedule(asking("a", block_keys=[1, key]), 0.0)
    assert caught.value.param == "block_keys"


def test_nothing_is_charged_if_anything_raises() -> None:
    made = master("encode", "prefill", "decode", listener=(failing := Failing()))
    before = books(made)
    failing.fails = True
    with pytest.raises(OverflowError):
        made.schedule(asking("a", items=[picture("x")]), 0.0)
    assert books(made) == before
    assert (len(made.ledger), made.registry.fleet("m").pending) == (0, {})


def test_a_waiting_request_that_cannot_be_placed_ends_and_others_go_on() -> None:
    made = master("prefill", "decode", busy_requests=1, listener=(failing := Failing()))
    place(made, asking("first"))
    tickets = [made.schedule(asking(f"r{i}"), 0.0) for i in range(2)]
    failing.fails = True
    made.finished(Finished("first"), 0.1)
    made.pump(0.1)
    made.expire(0.2)
    for ticket in tickets:
        assert isinstance(ticket, Ticket)
        assert isinstance(ticket.outcome, InternalError)
    assert (made.waiting, made.totals.refused["internal_error"]) == (0, 2)


def held_then_busy() -> tuple[Master, ScheduleRequest]:
    """A request whose first picture is fetched and whose second finds the encoders busy."""
    made = master("encode", "encode", "prefill", "decode", busy_queue_ms=100.0)
    hear(made, "e0", EmbeddingStored("x"))
    for name in ("e0", "e1"):
        made.heartbeat(Heartbeat(name, load=Load(queued=1, queued_tokens=5000, rates=RATES)), 0.0)
    items = [MediaNeed("x", 32, 0, 50_000_000), picture("y", 64)]
    return made, asking("a", blocks=0, items=items)


def test_a_refused_placement_charges_no_fetch() -> None:
    made, request = held_then_busy()
    before = books(made)
    with pytest.raises(AllBusy):
        made._placer.place(made.registry.fleet("m"), request, 0.0)
    assert isinstance(made.schedule(request, 0.0), Ticket)
    for i in range(1, 101):
        made.pump(i * 0.005)
    assert books(made) == before


def test_pictures_of_one_request_from_one_holder_wait_for_each_other() -> None:
    """20 ms each: the third is encoded sooner."""
    made = master("encode", "encode", "prefill", "decode")
    for name in "xyz":
        hear(made, "e0", EmbeddingStored(name))
    large = [MediaNeed(name, 32, 32 * i, 20_000_000) for i, name in enumerate("xyz")]
    states = [e.state for e in place(made, asking("a", blocks=0, items=large)).encoders]
    assert states == ["cached", "cached", "encode"]
    pool = made.registry.fleet("m").pools["encode"]
    assert float(pool.send_until.max()) == pytest.approx(40.0)


def test_an_unreachable_deadline_charges_no_encode() -> None:
    made = master("encode", "prefill", "decode")
    before = books(made)
    with pytest.raises(Unavailable) as caught:
        made.schedule(asking("a", items=[picture("x")], deadline_s=0.1), 0.0)
    assert caught.value.code == "deadline_unreachable"
    assert (books(made), made.registry.fleet("m").pending) == (before, {})


def test_the_end_of_one_encode_leaves_another_ones_to_be_joined() -> None:
    """Sending takes so long that the picture is encoded twice, at the same encoder."""
    made = master("encode", "prefill", "decode", busy_queue_ms=0)
    slow = Load(rates=Rates(encode_ms_per_token=1.0, transfer_bytes_per_ms=1e3))
    made.heartbeat(Heartbeat("e0", load=slow), 0.0)
    twice = [MediaNeed("x", 32, 0, 10_000_000)]
    assert place(made, asking("a", blocks=0, items=twice)).encoders[0].state == "encode"
    assert place(made, asking("b", blocks=0, items=twice)).encoders[0].state == "encode"
    made.finished(Finished("b", "encode", ["x"], failed=["e0"]), 0.01)
    assert "x" in made.registry.fleet("m").pending
    made.finished(Finished("a", "encode", ["x"], failed=["e0"]), 0.01)
    assert "x" not in made.registry.fleet("m").pending


def test_what_lapses_is_not_taken_from_a_report_that_came_since() -> None:
    made = master("decode", request_ttl=5.0)
    place(made, asking("a"))
    load = Load(running=3, free_blocks=50, total_blocks=1000, context_tokens=480, rates=RATES)
    made.heartbeat(Heartbeat("d0", load=load), 1.0)
    made.expire(5.0)
    pool, row = made.registry.instances["d0"].pool, made.registry.instances["d0"].row
    assert len(made.ledger) == 0
    assert (float(pool.requests[row]), float(pool.free_blocks[row])) == (3.0, 50.0)
    assert float(pool.context_tokens[row]) == 480.0


def test_what_lapses_unreported_is_given_back() -> None:
    made = master("decode", request_ttl=5.0)
    made.heartbeat(Heartbeat("d0", load=LOAD), 0.0)
    place(made, asking("a"), 0.0)
    made.heartbeat(Heartbeat("d0", load=LOAD), 0.1)  # cannot show it yet
    made.expire(5.0)
    pool, row = made.registry.instances["d0"].pool, made.registry.instances["d0"].row
    assert (float(pool.requests[row]), float(pool.free_blocks[row])) == (0.0, 1000.0)


def failures(made: Master, name: str) -> int:
    return made.registry.instances[name].failures


def failed_once(made: Master, *names: str) -> None:
    made.finished(Finished("unknown", failed=list(names)), 0.0)
    assert {failures(made, name) for name in names} == {1}


def test_a_picture_that_is_encoded_says_nothing_of_another_encoder() -> None:
    made = master("encode", "encode", "prefill", "decode")
    items = [picture("x"), picture("y", 64)]
    at = {e.mm_hash: e.target for e in place(made, asking("a", blocks=0, items=items)).encoders}
    first, second = at["x"], at["y"]
    assert first and second and first != second
    failed_once(made, first.instance_id, second.instance_id)
    made.finished(Finished("a", "encode", ["x"]), 0.1)
    assert (failures(made, first.instance_id), failures(made, second.instance_id)) == (0, 1)


@pytest.mark.parametrize(
    "report", [Finished("a", aborted=True), Finished("a", failed=["p0"]), Finished("a", "encode")]
)
def test_a_request_that_was_not_answered_clears_no_worker(report: Finished) -> None:
    made = master("prefill", "decode")
    place(made, asking("a"))
    failed_once(made, "d1")
    made.finished(report, 0.1)
    assert failures(made, "d1") == 1


def test_a_hanging_worker_is_broken_though_clients_leave_in_between() -> None:
    made = master("prefill", "decode", breaker_failures=3)
    for i in range(3):
        place(made, asking(f"left{i}"))
        made.finished(Finished(f"left{i}", aborted=True), 0.1)
        place(made, asking(f"hung{i}"))
        made.finished(Finished(f"hung{i}", failed=["d1"]), 0.1)
    assert made.registry.instances["d1"].open_until > 100.0


def test_an_answered_request_clears_its_workers() -> None:
    made = master("prefill", "decode")
    place(made, asking("a"))
    failed_once(made, "p0", "d1")
    made.finished(Finished("a", "prefill"), 0.1)
    assert (failures(made, "p0"), failures(made, "d1")) == (0, 1)
    made.finished(Finished("a"), 0.2)
    assert failures(made, "d1") == 0


async def waiting(**config: Any) -> tuple[MasterService, PlacementTicket, asyncio.Future[None]]:
    service = MasterService(MasterConfig(**{"seed": 1, "busy_requests": 1, **config}))
    add(service.master, "d0", "decode", events=[])
    assert isinstance(service.schedule(asking("first")), Placement)
    ticket = service.schedule(asking("second"))
    assert isinstance(ticket, Ticket)
    return service, ticket, asyncio.get_running_loop().create_future()


async def test_who_leaves_as_its_turn_comes_gives_the_place_back() -> None:
    service, ticket, left = await waiting()
    answer = asyncio.create_task(service.wait(ticket, left))
    await asyncio.sleep(0)
    service.master.finished(Finished("first"), 0.0)
    service.master.pump(0.0)
    assert isinstance(ticket.outcome, Placement)
    left.set_result(None)
    assert await asyncio.wait_for(answer, 5.0) is None
    assert len(service.master.ledger) == 0


async def test_who_left_before_waiting_gives_the_place_back() -> None:
    service, ticket, left = await waiting()
    service.master.finished(Finished("first"), 0.0)
    service.master.pump(0.0)
    left.set_result(None)
    assert await service.wait(ticket, left) is None
    assert len(service.master.ledger) == 0


async def test_who_stays_keeps_it() -> None:
    service, ticket, left = await waiting()
    service.master.finished(Finished("first"), 0.0)
    service.master.pump(0.0)
    placement = await service.wait(ticket, left)
    assert placement is not None and placement.request_id == "second"
    assert len(service.master.ledger) == 1
