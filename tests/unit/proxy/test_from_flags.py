"""Consumers of pushed embeddings: the flags that name them, and whose turn it is."""

import pytest

from protocol.errors import ConfigError
from protocol.settings import resolve
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.fleet.from_flags import make_fleet
from proxy.fleet.worker import Instance
from proxy.relay.request_state import Consumer

URLS = "http://d1:1,http://d2:1"
FOUR = "tcp://d1:7001,tcp://d1:7002, tcp://d2:7001,tcp://d2:7002"


def fleet(*flags: str, decode: str = URLS) -> Fleet:
    return make_fleet(resolve(ProxyConfig, ["--decode-servers-urls", decode, *flags], {}))


def test_replicas_are_listed_one_after_the_other() -> None:
    found = fleet("--ec-consumer-zmq-addrs", FOUR, "--ec-consumer-dp-size", "2")
    assert [worker.ec_zmq_addrs for worker in found.decode] == [
        ("tcp://d1:7001", "tcp://d1:7002"),
        ("tcp://d2:7001", "tcp://d2:7002"),
    ]
    assert found.pushed_to and not fleet().pushed_to


@pytest.mark.parametrize(
    ("flags", "decode", "says"),
    [
        (("--ec-consumer-zmq-addrs", FOUR), URLS, "4 addresses, but 2 decode workers"),
        (("--ec-consumer-dp-size", "2"), URLS, "--ec-consumer-zmq-addrs, which is empty"),
        (("--ec-consumer-dp-size", "0"), URLS, "--ec-consumer-dp-size"),
        (("--ec-consumer-zmq-addrs", "tcp://d"), "http://d1:1", "tcp://d"),
        (("--ec-consumer-zmq-addrs", "tcp://d:65536"), "http://d1:1", "tcp://d:65536"),
        (("--ec-consumer-zmq-addrs", "tcp://d:1"), "dns+http://d:1", "dns[+]http://d:1"),
        (("--ec-consumer-zmq-addrs", "tcp://d:1", "--prefill-servers-urls", "http://p:1"),
         "http://d1:1", "--prefill-servers-urls"),
    ],
)  # fmt: skip
def test_what_names_no_consumers_is_refused(flags: tuple[str, ...], decode: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        fleet(*flags, decode=decode)


def test_the_rank_with_the_fewest_requests_is_next() -> None:
    worker = Instance("http://d:1", "decode", ec_zmq_addrs=("tcp://d:1", "tcp://d:2", "tcp://d:3"))
    first = [Consumer.bound(worker, "decode") for _ in range(6)]
    assert [one.rank for one in first] == [0, 1, 2, 0, 1, 2]
    assert [one.address for one in first[:3]] == list(worker.ec_zmq_addrs)
    assert first[1].header == b"x-data-parallel-rank: 1\r\n"
    for one in (first[1], first[4]):
        one.leave()
    assert [Consumer.bound(worker, "decode").rank for _ in range(2)] == [1, 1]


def test_a_worker_with_one_rank_or_none_is_bound_to_no_rank() -> None:
    alone = Consumer.bound(Instance("http://d:1", "decode", ec_zmq_addrs=("tcp://d:1",)), "decode")
    assert (alone.address, alone.header) == ("tcp://d:1", b"")
    fetching = Consumer.bound(Instance("http://d:1", "decode"), "decode")
    assert (fetching.address, fetching.header) == ("", b"")
    fetching.leave()
