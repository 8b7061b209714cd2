"""Transfers that go wrong half-way, over every transport: noticed, counted, made good."""

import pytest
import torch

from connectors.base import EC_TENSOR, Entry
from connectors.ec.load import ArenaLoad
from connectors.kv.fetch import Fetch
from connectors.messages import ECDone, KVFetched, Release
from protocol.errors import TransferError, TransferTimeout
from tests.support.links import MEMORY, Link, Side, rows


def mute(side: Side, monkeypatch: pytest.MonkeyPatch, *kinds: type) -> None:
    """What this side says of these kinds is lost on the way."""
    client = side.node.client
    said = client.send
    monkeypatch.setattr(
        client, "send", lambda peer, message: isinstance(message, kinds) or said(peer, message)
    )


def ec_leases(side: Side) -> int:
    return side.ec.stats().leases_expired


def test_a_lost_confirmation_costs_its_own_request_only(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer gives up in time, the producer's lease ends what no consumer confirms."""
    ref = link.offer([1, 2])
    before = link.producer.kv.stats().leases_expired
    load = link.consumer.kv.fetch(ref, 2)
    link.until(lambda: load.poll() or load.fed)
    load.place(0, [0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(
            link.consumer.kv.consumer,
            "options",
            type(link.consumer.kv.consumer.options)(1024, heartbeat_s=10.0, silence_s=0.5),
        )
        mute(link.consumer, patch, KVFetched, Release)
        assert isinstance(link.fails(load), TransferTimeout)
    link.producer.lapse()
    link.until(lambda: ref.request_id in link.producer.ended)
    assert link.producer.kv.stats().leases_expired == before + 1
    link.works()


def test_a_lost_release_is_made_up_for_by_the_lease(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = link.offer([1])
    before = link.producer.kv.stats().leases_expired
    load = link.consumer.kv.fetch(ref, 1)
    with monkeypatch.context() as patch:
        mute(link.consumer, patch, Release)
        link.until(lambda: load.poll() or load.fed)
        load.cancel()
    link.producer.lapse()
    link.until(lambda: ref.request_id in link.producer.ended)
    assert link.producer.kv.stats().leases_expired == before + 1


def test_an_embedding_whose_reader_says_nothing_is_let_go(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that never says it is done, and a read that is never confirmed."""
    if link.transport not in MEMORY:
        pytest.skip("for files see test_ec_files")
    before = ec_leases(link.producer)
    params = link.producer.ec.offer("a", Entry(rows(), ("r",)))
    load = link.consumer.ec.fetch("a", params)
    assert isinstance(load, ArenaLoad)
    with monkeypatch.context() as patch:
        mute(link.consumer, patch, ECDone)
        link.until(lambda: load.poll() or load._tensors is not None)
        load._deadline = 0.0
        with pytest.raises(TransferTimeout):
            load.poll()
        load.cancel()
    large = Entry({EC_TENSOR: torch.zeros(252, 64)}, ())
    assert link.producer.ec.offer("b", large) is None, "what is read stays"
    link.producer.lapse()
    link.until(lambda: link.producer.ec.offer("b", large) is not None)
    assert ec_leases(link.producer) == before + 2
    link.producer.ec.clear()


def test_blocks_that_were_let_go_while_they_were_read_are_not_used(link: Link) -> None:
    """The race: everything is copied, then the producer takes its blocks back before it is asked
    whether it held them."""
    ref = link.offer([1, 2])
    load = link.consumer.kv.fetch(ref, 2)
    load.place(0, [0, 1])
    link.until(lambda: load.poll() or load.fed)
    assert isinstance(load, Fetch)

    def asked() -> bool:
        link.producer.node.transport.poll()
        return load.poll() is None and load._confirmed is not None

    link.until(asked, link.consumer)
    link.producer.kv.release(ref.request_id, "preempted")
    link.fails(load)
    link.works()


def test_an_embedding_that_was_let_go_while_it_was_read_is_not_used(link: Link) -> None:
    if link.transport not in MEMORY:
        pytest.skip("a file does not change while it is read")
    params = link.producer.ec.offer("c", Entry(rows(), ()))
    before = ec_leases(link.producer)
    load = link.consumer.ec.fetch("c", params)
    link.until(lambda: link.producer.ec.active or load.poll())
    link.producer.lapse()
    link.until(lambda: ec_leases(link.producer) > before, link.producer)
    with pytest.raises(TransferError, match="expired"):
        link.until(load.poll)
    load.cancel()
    assert ec_leases(link.producer) == before + 1
    link.works()
