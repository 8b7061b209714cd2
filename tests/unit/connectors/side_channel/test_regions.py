"""Who may read which region, and what one refusal does to the rest."""

import pytest

from connectors.base import Entry
from connectors.messages import Hello, Refused
from protocol.errors import IncompatiblePeer
from tests.support.links import Link, Side, rows
from tests.support.raw_peers import RawConsumer, answered


@pytest.mark.parametrize("region", ["ec", "nowhere"])
def test_a_region_that_is_read_but_not_served_is_refused(link: Link, region: str) -> None:
    """The one who asks takes a consumer for an encoder, and is of the same model."""
    stranger = RawConsumer(link.consumer.node.server.port)
    try:
        stranger.say(Hello(6, "me", link.transport, region, "model"))
        answer = answered(link, stranger)
        assert isinstance(answer, Refused) and answer.query == 6
        assert link.consumer.node.instance_id in answer.reason and region in answer.reason
    finally:
        stranger.close()
    link.works()


def test_a_refused_region_leaves_the_others_their_connection(link: Link) -> None:
    """KV of another layout is asked for where an embedding is waited for."""
    reader = Side(link.transport, link.folder, produces=False, layout="another layout")
    name, ref = link.name(), link.offer([1])
    params = {"peer_host": "127.0.0.1", "peer_port": link.producer.node.server.port}
    sides = (link.producer, reader)
    try:
        load = reader.ec.fetch(name, params)
        link.until(lambda: load.poll() or link.producer.ec.wanted(name), *sides)
        fetch = reader.kv.fetch(ref, 1)
        with pytest.raises(IncompatiblePeer):
            link.until(fetch.poll, *sides)
        fetch.cancel()
        link.producer.ec.offer(name, Entry(rows(), ()))
        link.until(lambda: load.poll() is not None, *sides)
        assert not reader.node.client.broken(("127.0.0.1", int(str(params["peer_port"]))))
    finally:
        reader.close()
    link.producer.kv.release(ref.request_id, "")
    link.producer.ec.clear()


def test_a_refusal_alone_leaves_no_connection(link: Link) -> None:
    reader = Side(link.transport, link.folder, produces=False, layout="another layout")
    ref = link.offer([1])
    try:
        fetch = reader.kv.fetch(ref, 1)
        with pytest.raises(IncompatiblePeer):
            link.until(fetch.poll, link.producer, reader)
        assert reader.node.client.connection_number((ref.host, ref.port)) is None
        fetch.cancel()
    finally:
        reader.close()
    link.producer.kv.release(ref.request_id, "")
