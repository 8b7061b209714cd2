"""Workers, masters, events and Redis fail under load: no request fails, the index is right again.

Clients do what a proxy does: any master, any worker it names, another one if that fails.
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from protocol.kv_events import BlockStored
from tests.support.masters import Publisher, blocks_of, metric, register, until, workers
from tests.support.placing_clients import MODEL, REVISION, Clients
from tests.support.redis_server import RedisServer
from tests.support.stack import Process, call

LEASE_S = 3.0


@dataclass
class Fleet:
    """Two masters on a Redis; three workers that only speak to the first of them."""

    redis: RedisServer
    a: Process
    b: Process
    steady: Process

    @property
    def masters(self) -> list[Process]:
        return [self.a, self.b]

    def repair(self) -> None:
        """What a test has left broken is no matter of the next one."""
        self.redis.resume()
        if self.redis.process.poll() is not None:
            self.redis.start()
        for master in self.masters:
            if master.process.poll() is not None:
                master.restart()


def mock(count: int, *masters: Process) -> Process:
    process = Process(
        "services.mock", "--role", "prefill_decode", "--count", str(count), "--speed", "50",
        "--master-url", ",".join(master.url for master in masters),
        "--heartbeat-interval", "0.2", "--revision", REVISION, "--log-level", "error", env={},
    )  # fmt: skip
    process.wait_ready()
    return process


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    redis = RedisServer()
    flags = ("--redis-url", redis.url, "--lease", str(LEASE_S), "--log-level", "warning",
             "--probe-timeout", "2", "--breaker-open", "1")  # fmt: skip
    processes = [Process("services.master", *flags, env={}) for _ in "ab"]
    try:
        for master in processes:
            master.wait_ready()
        processes.append(mock(3, processes[0]))
        yield Fleet(redis, *processes)
    finally:
        for process in processes:
            process.kill()
        redis.close()


@pytest.fixture
def clients(fleet: Fleet) -> Iterator[Clients]:
    """Load all the time; afterwards no request may have failed, and both masters agree with what
    is there."""
    fleet.repair()
    until(lambda: names(fleet) == [urls(fleet.steady)] * 2)
    with Clients(fleet.masters) as clients:
        clients.some_more(10)
        yield clients
        clients.some_more(10)
    assert clients.failed == []
    until(lambda: names(fleet) == [urls(fleet.steady)] * 2)
    until(lambda: indexed(fleet.a) == indexed(fleet.b))
    assert all(indexed(fleet.a).values())


def urls(process: Process) -> set[str]:
    return {line.split(" ready on ")[1].strip() for line in process.log if " ready on " in line}


def names(fleet: Fleet) -> list[set[str]]:
    """URLs of the mock workers that each master knows."""
    shown = [workers(master).values() for master in fleet.masters]
    return [{w["info"]["url"] for w in some if w["info"]["model"] == MODEL} for some in shown]


def indexed(master: Process) -> dict[str, int]:
    """Blocks that a master takes each mock worker to hold."""
    shown = workers(master).values()
    return {
        w["info"]["url"]: w.get("indexed_blocks", 0) for w in shown if w["info"]["model"] == MODEL
    }


def exchanged(master: Process, kind: str) -> float:
    return metric(master, f'replication_total{{kind="{kind}"}}')


def test_a_worker_that_hangs_flaps_and_dies(fleet: Fleet, clients: Clients) -> None:
    frail = mock(1, *fleet.masters)
    both = urls(fleet.steady) | urls(frail)
    until(lambda: names(fleet) == [both] * 2)
    for _ in range(3):  # shorter than its lease
        frail.process.send_signal(signal.SIGSTOP)
        clients.some_more(5)
        frail.process.send_signal(signal.SIGCONT)
    frail.process.send_signal(signal.SIGSTOP)
    until(lambda: names(fleet) == [urls(fleet.steady)] * 2)
    clients.some_more(10)
    frail.process.send_signal(signal.SIGCONT)
    until(lambda: names(fleet) == [both] * 2)
    until(lambda: indexed(fleet.a) == indexed(fleet.b))
    frail.kill()
    until(lambda: names(fleet) == [urls(fleet.steady)] * 2)


def test_a_master_killed_and_restarted(fleet: Fleet, clients: Clients) -> None:
    """The other one keeps the workers that only spoke to it, for they answer."""
    fleet.a.kill()
    before = exchanged(fleet.b, "orphans_alive")
    until(lambda: exchanged(fleet.b, "orphans_alive") >= before + 6)
    assert names_at(fleet.b) == urls(fleet.steady)
    clients.some_more(20)
    fleet.a.restart()
    assert names_at(fleet.a) == urls(fleet.steady), "what Redis has is known from the start"
    until(lambda: all(indexed(fleet.a).values()))


def names_at(master: Process) -> set[str]:
    return set(indexed(master))


def test_redis_gone_hanging_and_back(fleet: Fleet, clients: Clients) -> None:
    fleet.redis.kill()
    until(lambda: not any(metric(m, "redis_up") for m in fleet.masters))
    before = exchanged(fleet.b, "orphans_alive")
    register(fleet.b, "meanwhile", "decode", model="other")
    until(lambda: exchanged(fleet.b, "orphans_alive") >= before + 6)
    assert names(fleet) == [urls(fleet.steady)] * 2
    assert "meanwhile" not in workers(fleet.a)
    clients.some_more(20)
    fleet.redis.start()
    until(lambda: all(metric(m, "redis_up") for m in fleet.masters))
    until(lambda: len(fleet.redis.client.keys("triptych:default:instance:*")) >= 3)
    fleet.redis.pause()
    until(lambda: not any(metric(m, "redis_up") for m in fleet.masters))
    clients.some_more(10)
    fleet.redis.resume()
    until(lambda: all(metric(m, "redis_up") for m in fleet.masters))
    said = [sum("Redis is unreachable" in line for line in m.log) for m in fleet.masters]
    assert said == [2, 2], "once for each time"


def test_both_masters_gone_and_back(fleet: Fleet, clients: Clients) -> None:
    """No master places meanwhile; clients try again."""
    for master in fleet.masters:
        master.kill()
    for master in fleet.masters:
        master.launch(int(master.url.rpartition(":")[2]))
    for master in fleet.masters:
        master.wait_ready()
    clients.some_more(20)


def test_events_lost_doubled_and_out_of_order(fleet: Fleet) -> None:
    fleet.repair()
    publisher = Publisher(snapshots=True, keep=3)
    sources = [publisher.source]
    register(fleet.a, "p", "prefill", model="events", events=sources)
    held = 0

    def store(*keys: int, lose: bool = False) -> None:
        nonlocal held
        publisher.publish(BlockStored(list(keys)), lose=lose)
        held += len(keys)

    def right() -> bool:
        return blocks_of(fleet.a, "p") == blocks_of(fleet.b, "p") == held

    def doubled() -> bool:
        """While a replay is under way what comes again is not counted."""
        publisher.resend(2, 1)
        return metric(fleet.b, 'event_messages_total{kind="duplicate"}') >= 2

    store(1, 2)
    until(right)
    lost = metric(fleet.b, 'event_messages_total{kind="lost"}')
    store(3, lose=True)
    store(4, lose=True)
    publisher.resend(2, 1, 2, 1)
    until(right)
    store(5)
    until(right)
    for key in range(10, 20):
        store(key, lose=True)
    store(20)
    until(right)
    found = metric(fleet.b, 'event_messages_total{kind="lost"}')
    assert found == lost + 1, "replay, then snapshot"
    until(doubled)
    assert right()
    publisher.close()


def test_sockets_are_closed_with_their_workers(fleet: Fleet) -> None:
    fleet.repair()
    publisher = Publisher(snapshots=True)
    processes = [psutil.Process(master.process.pid) for master in fleet.masters]
    before = [process.num_fds() for process in processes]
    for turn in range(40):
        register(fleet.a, f"s{turn}", "prefill", model="sockets", events=[publisher.source] * 2)
        call(f"{fleet.masters[turn % 2].url}/deregister", {"instance_id": f"s{turn}"})
    until(lambda: all(p.num_fds() < n + 20 for p, n in zip(processes, before, strict=True)))
    publisher.close()
