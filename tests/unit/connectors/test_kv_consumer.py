"""The consumer's side of KV: whom a fetch listens to, what keeps its lease, how it is given up."""

from collections.abc import Callable, Iterator
from operator import gt
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
import torch

from connectors.kv.base import KVLoad
from connectors.leases import LeaseTable
from connectors.messages import Alive, Held, KVEnd, KVReady
from protocol.errors import InvalidRequest, TransferError, TransferTimeout
from protocol.refs import KVRef
from tests.support.links import Link, linked
from tests.support.raw_peers import RawProducer


@pytest.fixture(params=[False, True], ids=["direct", "staged"])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    with linked("shm", tmp_path, staged=request.param) as link:
        yield link


@pytest.fixture
def impostors(link: Link) -> Iterator[list[RawProducer]]:
    """Two that have the producer's memory."""
    both = [RawProducer(link.producer.node) for _ in range(2)]
    yield both
    for one in both:
        link.consumer.node.peers.lost(("127.0.0.1", one.port))
        one.close()


def told(link: Link, producer: RawProducer, kind: str, *loads: KVLoad) -> Any:
    """The next message of a kind; the loads go on meanwhile and none arrives."""
    found: list[Any] = []

    def done() -> bool:
        assert [load.poll() for load in loads] == [None] * len(loads)
        found.extend(message for message in [producer.took(kind)] if message is not None)
        return bool(found)

    link.until(done)
    return found[0]


def test_two_producers_of_one_name_are_told_apart(link: Link, impostors: list[RawProducer]) -> None:
    """Each speaks of another block of the same request, in the same generation."""
    loads = [link.consumer.kv.fetch(one.ref("r", 16), 1) for one in impostors]
    for number, load in enumerate(loads):
        load.place(0, [number])
    link.producer.pool[4:6] = torch.randn(2, link.producer.pool.shape[1])
    published = link.producer.kv.offered
    if (ticket := published.offer([4, 5])) is not None:
        link.until(ticket.poll)
    asked = [told(link, one, "KVWant", *loads) for one in impostors]
    for block, one, who in zip((4, 5), impostors, asked, strict=True):
        one.send(who.identity, KVReady("r", 7, 0, [block]), KVEnd("r", 7, 16, 0, {0: [block]}))
    for number, (one, load) in enumerate(zip(impostors, loads, strict=True)):
        confirmed = told(link, one, "KVFetched", *loads[number:])
        one.send(confirmed.identity, Held(confirmed.message["query"], True))
        assert link.copied(load).outputs == {0: [4 + number]}
    assert torch.equal(link.consumer.pool[:2], link.producer.pool[4:6])


def test_a_confirmation_of_another_producer_is_none(
    link: Link, impostors: list[RawProducer]
) -> None:
    """Not even if the number fits."""
    right, wrong = impostors
    loads = [link.consumer.kv.fetch(one.ref("r", 16), 1) for one in impostors]
    loads[0].place(0, [0])
    asked = [told(link, one, "KVWant", *loads) for one in impostors]
    right.send(asked[0].identity, KVReady("r", 7, 0, [4]), KVEnd("r", 7, 16, 0, {}))
    confirmed = told(link, right, "KVFetched", *loads)
    query = confirmed.message["query"]
    wrong.send(asked[1].identity, Held(query, True), KVReady("r", 9, 0, [4]))
    link.until(lambda: (loads[0].poll(), loads[1].poll(), loads[1].fed)[2])
    assert loads[0].poll() is None
    right.send(confirmed.identity, Held(query, False))
    assert "expired" in link.fails(loads[0]).message
    loads[1].cancel()


def test_a_second_fetch_of_the_same_offer_is_refused(link: Link) -> None:
    """The first goes on; once it has ended, another may ask."""
    ref = link.offer([1])
    load = link.consumer.kv.fetch(ref, 1)
    with pytest.raises(TransferError, match="fetching this KV already"):
        link.consumer.kv.fetch(ref, 1)
    load.place(0, [0])
    link.copied(load)
    again = link.consumer.kv.fetch(ref, 1)
    assert "holds no KV of this request" in link.fails(again).message


def test_what_comes_after_the_end_is_not_believed(link: Link, impostors: list[RawProducer]) -> None:
    """Blocks that would be copied over those that were confirmed."""
    load = link.consumer.kv.fetch(impostors[0].ref("r", 16), 1)
    load.place(0, [0])
    who = told(link, impostors[0], "KVWant", load).identity
    impostors[0].send(who, KVReady("r", 7, 0, [4]), KVEnd("r", 7, 16, 0, {}))
    told(link, impostors[0], "KVFetched", load)
    impostors[0].send(who, KVReady("r", 8, 0, [5]))
    assert "sealed" in link.fails(load).message


@pytest.mark.parametrize(
    ("says", "reason"), [(Alive(), "kv_timeout"), (Alive(700.0), "computes without an end")]
)
def test_who_goes_on_without_a_confirmation_is_given_up(
    tmp_path: Path, says: Alive, reason: str
) -> None:
    """A producer that is heard of is not silent; yet it owes an answer, unless it computes a step,
    and that has an end too."""
    with linked("shm", tmp_path, timeout_s=1.0) as link:
        producer = RawProducer(link.producer.node)
        load = link.consumer.kv.fetch(producer.ref("r", 16), 1)
        load.place(0, [0])
        who = told(link, producer, "KVWant", load).identity
        producer.send(who, KVReady("r", 7, 0, [4]), KVEnd("r", 7, 16, 0, {}))
        told(link, producer, "KVFetched", load)

        def beating() -> bool:
            producer.send(who, says)
            return load.poll() is not None

        with pytest.raises(TransferTimeout) as caught:
            link.until(beating)
        assert reason in caught.value.message
        load.cancel()
        producer.close()


@pytest.mark.parametrize("said", [KVReady("r", 8, 0, [4]), KVEnd("r", 8, 16, 0, {})])
def test_an_offer_that_came_again_is_another_one(
    link: Link, impostors: list[RawProducer], said: msgspec.Struct
) -> None:
    """A handle names one life of its request."""
    ref = msgspec.structs.replace(impostors[0].ref("r", 16), generation=7)
    load = link.consumer.kv.fetch(ref, 1)
    impostors[0].send(told(link, impostors[0], "KVWant", load).identity, said)
    assert "another" in link.fails(load).message


def test_generations_of_two_processes_do_not_meet() -> None:
    tables = [LeaseTable[str](1.0) for _ in range(2)]
    given = {table.grant("r") for table in tables for _ in range(10)}
    assert len(given) == 20 and all(0 < number < 1 << 63 for number in given)


def beat(link: Link) -> None:
    """The next heartbeat is due."""
    link.consumer.kv.consumer._next_heartbeat = 0.0


def deadline(link: Link, name: str) -> float:
    """Of an offer's lease."""
    until = link.producer.kv.producer.leases._leases[name].deadline
    assert until is not None
    return until


def test_heartbeats_of_many_fetches_with_long_names_all_arrive(link: Link) -> None:
    """Together they are more than one message may hold."""
    kv, names = link.producer.kv, [f"{n:04d}" + "ü" * 4092 for n in range(600)]
    for name in names:
        kv.offer(name)
        kv.seal(name, 16, 0, {})
    endpoint = KVRef.from_params({**kv.endpoint(), "remote_request_id": "r"})
    loads = [
        link.consumer.kv.fetch(msgspec.structs.replace(endpoint, request_id=name), 1)
        for name in names
    ]
    link.until(lambda: [load.poll() for load in loads] and all(load.fed for load in loads))
    before = [deadline(link, name) for name in names]
    beat(link)
    link.until(lambda: all(map(gt, [deadline(link, name) for name in names], before)))
    assert link.producer.refused == 0
    for load in loads:
        load.cancel()
    link.until(lambda: set(names) <= set(link.producer.ended))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("remote_request_id", "x" * 5000),
        ("remote_host", "x" * 5000),
        ("remote_engine_id", "x" * 5000),
        ("remote_request_id", 5),
        ("remote_host", None),
    ],
)
def test_a_handle_beyond_all_bounds_is_refused_by_the_name_of_its_field(
    field: str, value: Any
) -> None:
    params = KVRef("r", "i", (1,), 16, host="h", port=5).to_params()
    assert KVRef.from_params(params).request_id == "r"
    with pytest.raises(InvalidRequest, match=field):
        KVRef.from_params({**params, field: value})


def test_the_part_of_ours_says_nothing_in_the_place_of_the_rest() -> None:
    params = KVRef("r", "i", (1,), 16, host="h", port=5).to_params()
    params["triptych"] |= {"request_id": "other", "remote_request_id": "other", "host": "other"}
    ref = KVRef.from_params(params)
    assert (ref.request_id, ref.host) == ("r", "h")


def test_a_read_under_way_keeps_what_it_reads(tmp_path: Path) -> None:
    """The producer hears that a fetch was given up once nothing of it is under way, its lease being
    renewed until then."""
    with linked("shared_storage", tmp_path) as link:
        ref = link.offer([1])
        load = link.consumer.kv.fetch(ref, 1)
        link.until(lambda: load.poll() or load.fed)
        release = held_up(link)
        load.place(0, [0])
        assert load.poll() is None
        load.cancel()
        load.cancel()
        with pytest.raises(TransferError, match="fetching this KV already"):
            link.consumer.kv.fetch(ref, 1)
        before = deadline(link, ref.request_id)
        beat(link)
        link.until(lambda: deadline(link, ref.request_id) > before)
        assert not load.settled and ref.request_id not in link.producer.ended
        release()
        link.until(lambda: ref.request_id in link.producer.ended)
        assert load.settled
        link.works()


def held_up(link: Link) -> Callable[[], None]:
    """BufferPool every thread that reads busy until what this returns is called."""
    go, transport = Event(), link.consumer.node.transport
    readers = transport._readers  # type: ignore[attr-defined]
    for _ in range(readers._max_workers):
        readers.submit(go.wait, 20.0)
    return go.set


def test_who_closes_tells_its_producers(tmp_path: Path) -> None:
    """Of a fetch that waits, and of one that is read, which is let finish first."""
    with linked("shared_storage", tmp_path) as link:
        refs = [link.offer([1]), link.offer([2])]
        loads = [link.consumer.kv.fetch(ref, 1) for ref in refs]
        link.until(lambda: [load.poll() for load in loads] and all(load.fed for load in loads))
        release = held_up(link)
        loads[1].place(0, [0])
        assert loads[1].poll() is None
        release()
        link.consumer.close()
        link.until(lambda: {r.request_id for r in refs} <= set(link.producer.ended), link.producer)
        assert loads[1].settled
        assert link.producer.kv.stats().leases_expired == 0
        link.consumer = type(link.consumer)("shared_storage", tmp_path, produces=False)
        link.works()
