"""The producer's side of KV: offers that share blocks, cannot be published, or have two takers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from connectors.messages import (
    Alive,
    Heartbeat,
    Held,
    KVEnd,
    KVFetched,
    KVGone,
    KVReady,
    KVWant,
    Release,
)
from protocol.refs import KVRef
from tests.support.links import ELEMENTS, Link, linked
from tests.support.raw_peers import RawConsumer, introduced


@pytest.fixture(params=[False, True], ids=["direct", "staged"])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    with linked("shm", tmp_path, staged=request.param) as link:
        yield link


@pytest.fixture
def raw(link: Link) -> Iterator[Callable[[], RawConsumer]]:
    """Makes consumers."""
    made: list[RawConsumer] = []

    def make() -> RawConsumer:
        made.append(RawConsumer(link.producer.node.server.port))
        introduced(link, made[-1], "kv")
        return made[-1]

    yield make
    for one in made:
        one.close()


def hears(link: Link, who: RawConsumer, kind: type) -> Any:
    """The next message of a kind, and nothing else but `Alive` before it."""
    heard: list[Any] = []

    def done() -> bool:
        heard.extend(message for message in [who.heard()] if message is not None)
        return bool(heard) and not isinstance(heard[-1], Alive)

    link.until(done)
    assert isinstance(heard[-1], kind), heard
    return heard[-1]


def silent(link: Link, who: RawConsumer) -> bool:
    """Whether a consumer hears nothing now that all it has said has been taken in."""
    who.say(Heartbeat([]))
    heard: list[Any] = []

    def done() -> bool:
        heard.extend(message for message in [who.heard()] if message is not None)
        return bool(heard)

    link.until(done)
    return heard == [Alive()]


@contextmanager
def disk_gone(folder: Path) -> Iterator[None]:
    """Nothing can be written for a while."""
    found = list(folder.glob(".regions-*/kv"))
    away = [path.rename(path.with_name("away")) for path in found]
    yield
    for path, moved in zip(found, away, strict=True):
        moved.rename(path)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob(".regions-*/kv/*")}


def test_blocks_that_two_offers_share_stay_until_both_have_ended(tmp_path: Path) -> None:
    with linked("shared_storage", tmp_path) as link:
        first = link.offer([4, 5])
        kv = link.producer.kv
        kv.offer("second")
        link.producer.pool[6] = torch.randn(ELEMENTS)
        kv.advance("second", [4, 5, 6])
        second = kv.seal("second", 48, 0, {0: [5]})
        kv.offer("third")
        kv.advance("third", [4])
        link.until(lambda: kv.producer.blocks_held == 6)
        loads = [link.consumer.kv.fetch(ref, n) for ref, n in ((first, 2), (second, 3))]
        loads[0].place(0, [0, 1])
        link.copied(loads[0])
        link.until(lambda: first.request_id in link.producer.ended)
        kv.restart("third")
        kv.release("third", "aborted")
        loads[1].place(0, [2, 3, 1])
        link.copied(loads[1])
        assert torch.equal(link.consumer.pool[[2, 3, 1]], link.producer.pool[[4, 5, 6]])
        link.until(lambda: "second" in link.producer.ended)
        link.until(lambda: not files(tmp_path))
        link.works()


def test_an_offer_that_begins_anew_does_not_lapse_while_it_is_computed(link: Link) -> None:
    kv = link.producer.kv
    kv.offer("r")
    kv.advance("r", [4])
    kv.restart("r")
    link.producer.lapse()
    for _ in range(3):
        link.producer.poll()
    assert link.producer.ended == []
    kv.release("r", "aborted")


def test_a_block_that_is_offered_again_is_written_again(tmp_path: Path) -> None:
    """Its last offer ended, and its file goes, while the next one is on its way."""
    with linked("shared_storage", tmp_path) as link:
        kv = link.producer.kv
        for name in ("a", "b"):
            kv.offer(name)
            kv.advance(name, [4])
            if name == "a":
                kv.release(name, "aborted")
        ref = kv.seal("b", 16, 0, {0: [5]})
        load = link.consumer.kv.fetch(ref, 1)
        load.place(0, [0])
        link.copied(load)
        link.works()


def test_an_offer_that_cannot_be_published_ends_while_it_grows(tmp_path: Path) -> None:
    """Its consumer is told, and so is the engine, which then asks for nothing more."""
    with linked("shared_storage", tmp_path) as link:
        kv = link.producer.kv
        kv.offer("r")
        ahead = KVRef.from_params({**kv.endpoint(), "remote_request_id": "r"})
        load = link.consumer.kv.fetch(ahead, 2)
        link.until(lambda: load.poll() or kv.producer._offers["r"].consumer is not None)
        with disk_gone(tmp_path):
            kv.advance("r", [4])
            link.until(lambda: "r" in link.producer.ended)
        assert "cannot write" in link.fails(load).message
        assert "r" not in kv.producer.offered
        link.works()


def test_a_confirmation_before_the_end_confirms_nothing(
    link: Link, raw: Callable[[], RawConsumer]
) -> None:
    kv, consumer = link.producer.kv, raw()
    kv.offer("r")
    kv.advance("r", [1])
    consumer.say(KVWant("r", True))
    told = hears(link, consumer, KVReady)
    consumer.say(KVFetched(1, "r", told.generation))
    assert hears(link, consumer, Held) == Held(1, False)
    kv.advance("r", [1, 2])
    assert hears(link, consumer, KVReady).blocks == [2]
    kv.seal("r", 32, 0, {0: [5]})
    hears(link, consumer, KVEnd)
    consumer.say(KVFetched(2, "r", told.generation))
    assert hears(link, consumer, Held) == Held(2, True)
    link.until(lambda: "r" in link.producer.ended)


def test_the_last_to_ask_is_who_an_offer_is_for(link: Link, raw: Callable[[], RawConsumer]) -> None:
    """The first is told so, and what it says later of this offer, late release or heartbeat, takes
    nothing from the second."""
    kv, first, second = link.producer.kv, raw(), raw()
    kv.offer("r")
    kv.advance("r", [1])
    first.say(KVWant("r", True))
    told = hears(link, first, KVReady)
    second.say(KVWant("r", True))
    assert hears(link, second, KVReady) == told
    assert hears(link, first, KVGone).request_id == "r"
    first.say(Release(["r"]))
    first.say(Heartbeat(["r"]))
    assert hears(link, first, KVGone).request_id == "r"
    kv.seal("r", 16, 0, {0: [5]})
    hears(link, second, KVEnd)
    first.say(Release(["r"]))
    first.say(KVFetched(1, "r", told.generation))
    assert hears(link, first, Held) == Held(1, False)
    second.say(KVFetched(2, "r", told.generation))
    assert hears(link, second, Held) == Held(2, True)


def test_the_last_to_ask_ahead_is_who_waits(link: Link, raw: Callable[[], RawConsumer]) -> None:
    first, second = raw(), raw()
    first.say(KVWant("r", True))
    assert silent(link, first)
    second.say(KVWant("r", True))
    assert hears(link, first, KVGone).request_id == "r"
    first.say(Release(["r"]))
    assert silent(link, first)
    link.producer.kv.offer("r")
    link.producer.kv.advance("r", [1])
    assert hears(link, second, KVReady).blocks == [1]
    link.producer.kv.release("r", "aborted")


def test_a_consumer_that_does_not_fetch_an_offer_does_not_keep_it(
    link: Link, raw: Callable[[], RawConsumer]
) -> None:
    """Its heartbeats renew nothing."""
    ref, other = link.offer([1]), raw()
    other.say(Heartbeat([ref.request_id]))
    assert hears(link, other, KVGone).request_id == ref.request_id
    leases = link.producer.kv.producer.leases
    link.until(lambda: leases._leases[ref.request_id].deadline is not None)  # copies are under way
    link.producer.lapse()
    link.until(lambda: ref.request_id in link.producer.ended)


def test_a_lost_end_is_said_again(link: Link, raw: Callable[[], RawConsumer]) -> None:
    kv, consumer = link.producer.kv, raw()
    kv.offer("r")
    kv.advance("r", [1])
    consumer.say(KVWant("r", True))
    told = hears(link, consumer, KVReady)
    kv.seal("r", 16, 3, {0: [5]})
    ended = hears(link, consumer, KVEnd)
    for _ in range(2):
        consumer.say(Heartbeat(["r"]))
        assert hears(link, consumer, KVEnd) == ended
    consumer.say(KVFetched(2, "r", told.generation))
    assert hears(link, consumer, Held) == Held(2, True)


def test_an_offer_that_no_consumer_asked_for_is_released_by_one_told_of_it(
    link: Link, raw: Callable[[], RawConsumer]
) -> None:
    ref = link.offer([1])
    raw().say(Release([ref.request_id]))
    link.until(lambda: ref.request_id in link.producer.ended)
