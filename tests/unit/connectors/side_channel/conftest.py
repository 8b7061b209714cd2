"""Two nodes that work, and bad peers of either, over every transport."""

from collections.abc import Iterator

import pytest

from tests.support.links import PACKAGES, Link, linked
from tests.support.raw_peers import RawConsumer, RawProducer


@pytest.fixture(scope="module", params=list(PACKAGES))
def link(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Link]:
    with linked(request.param, tmp_path_factory.mktemp("link"), timeout_s=5.0) as link:
        link.works()
        yield link
        link.works()


@pytest.fixture
def intruder(link: Link) -> Iterator[RawConsumer]:
    raw = RawConsumer(link.producer.node.server.port)
    yield raw
    raw.close()


@pytest.fixture
def impostor(link: Link) -> Iterator[RawProducer]:
    raw = RawProducer(link.producer.node)
    yield raw
    link.consumer.node.peers.lost(("127.0.0.1", raw.port))
    raw.close()
