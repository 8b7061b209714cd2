"""What has failed a request does not get it again while somebody else could do it."""

import pytest

from protocol.placement import Finished, Placement
from protocol.registry import Drain, InstanceName
from services.admission.ticket import Ticket
from tests.support.master_fleets import add, asking, master, picture, place, prefill_of, sources


def decode_of(placement: Placement) -> str:
    return placement.decode.instance_id


@pytest.mark.parametrize(
    ("roles", "failed", "other"),
    [
        (["prefill", "prefill", "decode"], "p0", "p1"),
        (["prefill", "decode", "decode"], "d1", "d2"),
    ],
)
def test_a_request_waits_for_a_busy_worker_rather_than_go_where_it_failed(
    roles: list[str], failed: str, other: str
) -> None:
    made = master(*roles, busy_requests=1)
    instance = made.registry.instances[other]
    instance.pool.requests[instance.row] = 1.0
    ticket = made.schedule(asking("a", avoid=[failed]), 0.0)
    assert isinstance(ticket, Ticket) and ticket.outcome is None
    made.pump(1.0)
    assert ticket.outcome is None, f"{failed} is free, but has failed it"
    made.deregister(InstanceName(other), 2.0)
    made.pump(2.0)
    if failed == "p0":
        assert isinstance(ticket.outcome, Placement)
        assert ticket.outcome.prefill is None, "the decode worker does both"
    else:
        assert isinstance(ticket.outcome, Placement) and decode_of(ticket.outcome) == failed


def test_the_only_one_that_can_ever_take_it_is_tried_again() -> None:
    made = master("encode", "prefill", "decode")
    everyone = ["e0", "p1", "d2"]
    placement = place(made, asking("a", avoid=everyone, blocks=0, items=[picture("x")]))
    assert (prefill_of(placement), decode_of(placement)) == ("p1", "d2")
    assert sources(placement) == [("encode", "e0")]


def test_a_drained_worker_is_not_waited_for_a_broken_one_is() -> None:
    made = master("prefill", "decode", "decode", breaker_failures=1)
    made.drain(Drain("d2"), 0.0)
    assert decode_of(place(made, asking("a", avoid=["d1"]))) == "d1"
    made.drain(Drain("d2", draining=False), 0.0)
    made.finished(Finished("b", failed=["d2"]), 0.0)
    ticket = made.schedule(asking("c", avoid=["d1"]), 0.0)
    assert isinstance(ticket, Ticket)
    made.expire(29.0)
    assert ticket.outcome is None
    made.registry.breakers.succeeded("d2")
    made.registry.expire(30_000.0)
    made.pump(30.0)
    assert isinstance(ticket.outcome, Placement) and decode_of(ticket.outcome) == "d2"


@pytest.mark.parametrize(("more", "at"), [([], "d1"), (["pdfusion"], "p2")])
def test_others_do_both_where_the_only_prefill_worker_has_failed(more: list[str], at: str) -> None:
    made = master("prefill", "decode", *more)
    placement = place(made, asking("a", avoid=["p0"]))
    assert (placement.prefill, decode_of(placement)) == (None, at)


def test_an_encoder_that_failed_it_is_not_asked_while_another_is_busy() -> None:
    made = master("encode", "encode", "prefill", "decode", busy_queue_ms=100.0)
    place(made, asking("fill", blocks=0, avoid=["e0"], items=[picture("big", tokens=150)]))
    asked = asking("a", blocks=0, avoid=["e0"], items=[picture("x", tokens=32)])
    ticket = made.schedule(asked, 0.0)
    assert isinstance(ticket, Ticket)
    made.finished(Finished("fill"), 1.0)
    made.pump(1.0)
    assert isinstance(ticket.outcome, Placement)
    assert sources(ticket.outcome) == [("encode", "e1")]


def test_a_partner_that_failed_it_does_not_decide_about_prefill() -> None:
    made = master()
    for name, role, kind in (("p0", "prefill", "x"), ("p1", "prefill", "y"),
                             ("d0", "decode", "x"), ("d1", "decode", "y")):  # fmt: skip
        add(made, name, role, kv_endpoint={"triptych": {"compatibility": kind}})
    for number in range(8):
        placement = place(made, asking(f"r{number}", avoid=["d0"]), float(number))
        assert (prefill_of(placement), decode_of(placement)) == ("p1", "d1")
        made.finished(Finished(f"r{number}"), number + 0.5)
