"""Many minutes of virtual time in which workers die, flap, restart and change masters, proxies
forget to report, and the channel between two masters loses messages and is away at times."""

import random
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from protocol.errors import TriptychError
from protocol.kv_events import BlockRemoved, BlockStored, EmbeddingStored, EventBatch, EventSource
from protocol.placement import Finished, MediaNeed, Placement, ScheduleRequest
from protocol.registry import InstanceInfo, InstanceName, InstanceRole, Load
from services.master.master import Master
from services.master.placement.waiting import PlacementTicket
from services.master.probing.orphan_prober import keep, orphans
from tests.support.master_nodes import Fleet, Node

ROLES: list[InstanceRole] = [
    "encode", "encode", "prefill", "prefill", "prefill", "decode", "decode", "decode",
]  # fmt: skip
PER_S = 2
TTL_S = 60.0
LOAD = Load(free_blocks=500, total_blocks=500)
SEEN = {
    "Ledger._held", "HolderIndex._sets", "Changelog._gone_at", "Homes.elsewhere",
    "OtherMasters._others", "CacheIndex.pending", "PredictedCache._expiry", "Registry.instances",
    "Pool.ids", "Charge objects",
}  # fmt: skip
TRANSIENT = {
    f"{kind} objects"
    for kind in ("Charge", "Reservation", "ExpectedPrefix", "PendingEncode", "Ticket")
}
AWAY = range(40, 60)  # seconds of every fifth minute without the channel


class Churn:
    """A fleet of which some workers have events and some have not."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fleet = Fleet(
            2, lambda: self.rng.random() < 0.05, seed=seed, request_ttl=TTL_S, predict_ttl=20.0,
            lease=5.0, max_queue=50, busy_queue_ms=2_000.0, queue_timeout=5.0, breaker_open=10.0,
        )  # fmt: skip
        self.nodes = self.fleet.nodes
        self.alive: dict[int, int] = {}
        self.homes = [self.rng.choice(self.nodes) for _ in ROLES]
        self.placed: list[tuple[Node, str]] = []
        self.tickets: list[PlacementTicket] = []
        self.count = 0

    def info(self, worker: int) -> InstanceInfo:
        sources = [EventSource("tcp://127.0.0.1:1")] if worker % 2 else []
        return InstanceInfo(
            f"w{worker}", ROLES[worker], f"http://w{worker}", "m", str(self.alive[worker]),
            events=sources, load=LOAD,
        )  # fmt: skip

    def second(self, now: float) -> None:
        rng = self.rng
        self.connect(not (now // 60 % 5 == 0 and now % 60 in AWAY))
        for worker in range(len(ROLES)):
            self.live_or_die(worker)
        for _ in range(PER_S):
            self.request()
        while len(self.placed) > 10:
            node, name = self.placed.pop(rng.randrange(len(self.placed)))
            failed = [f"w{rng.randrange(len(ROLES))}"] if rng.random() < 0.05 else []
            if rng.random() < 0.9:
                node.master.finished(Finished(name, failed=failed), node.now)
        self.fleet.at(now + 1)
        for node in self.nodes:
            self.answer(node)

    def connect(self, there: bool) -> None:
        for node in self.nodes:
            if there and not node.replicator.connected:
                node.replicator.connected = True
                for joined in node.replicator.own(node.now):
                    node.replicator.tell(joined)
            elif not there and node.replicator.connected:
                node.replicator.cut_off()

    def answer(self, node: Node) -> None:
        """What is wanted is read, orphans are probed."""
        replicator = node.replicator
        for name in sorted(replicator.receiver.wanted):
            replicator.receiver.wanted.discard(name)
            for joined in (j for n in self.nodes for j in n.replicator.own(n.now) if n is not node):
                if joined.info.instance_id == name and replicator.connected:
                    replicator.receiver.recall(joined, node.now, 5.0)
        for info in orphans(replicator, node.now, 300.0):
            if self.alive.get(int(info.instance_id[1:])) == int(info.generation):
                keep(replicator, info, node.now)

    def live_or_die(self, worker: int) -> None:
        fate, home = self.rng.random(), self.homes[worker]
        if worker not in self.alive or fate < 0.002:
            self.alive[worker] = self.rng.randrange(1 << 30)
            home.register(self.info(worker))
        elif fate < 0.004:
            home.deregister(f"w{worker}")
        elif fate < 0.006:
            self.homes[worker] = self.rng.choice(self.nodes)
        elif fate < 0.9:
            if not home.beat(f"w{worker}", str(self.alive[worker]), LOAD):
                home.register(self.info(worker))
            self.events(worker)

    def events(self, worker: int) -> None:
        rng = self.rng
        stored = [rng.randrange(400) for _ in range(4)]
        gone = [rng.randrange(400) for _ in range(4)]
        picture = EmbeddingStored(f"x{rng.randrange(30)}")
        batch = EventBatch(0.0, [BlockStored(list(stored)), BlockRemoved(list(gone)), picture])
        for node in self.nodes if worker % 2 else ():
            node.master.apply(self.info(worker), batch)

    def request(self) -> None:
        rng, name = self.rng, f"r{self.count}"
        self.count += 1
        start = rng.randrange(40) * 10
        items = [MediaNeed(f"x{rng.randrange(200)}", 50, 10)] if rng.random() < 0.5 else []
        asked = ScheduleRequest(
            name, 200, "m", list(range(start, start + 10)), items=items, max_tokens=20,
            priority=rng.randrange(101), tenant=str(rng.randrange(3)),
            deadline_s=rng.choice([None, 0.5, 30.0]), session=str(rng.randrange(1 << 30)),
        )  # fmt: skip
        node = rng.choice(self.nodes)
        try:
            placed = node.schedule(asked)
        except TriptychError:
            return
        if isinstance(placed, Placement):
            self.placed.append((node, name))
        else:
            self.tickets = [t for t in [*self.tickets, placed] if t.outcome is None]


@pytest.mark.parametrize("minutes", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_churn_leaves_nothing_behind(minutes: int) -> None:
    seconds = 60 * minutes
    churn = Churn(3)
    early, late = Counter[str](), Counter[str]()
    for second in range(seconds):
        churn.second(float(second))
        if second % 120 == 119:
            for node in churn.nodes:
                check_bounds(node.master)
            largest = early if second < seconds / 2 else late
            for name, size in (pair for node in churn.nodes for pair in tables(node).items()):
                largest[name] = max(largest[name], size)
    grown = {name: (early[name], n) for name, n in late.items() if n > 1.5 * early[name] + 100}
    assert grown == {}
    assert set(late) >= SEEN
    for node in churn.nodes:
        totals = node.master.totals
        assert totals.placed > seconds / 2 and totals.lapsed > 0 and totals.given_up > 0
        assert node.replicator.counts["dropped"] == 0
    empty(churn, seconds)


def empty(churn: Churn, seconds: int) -> None:
    """Every worker leaves, and requests that no proxy reported lapse."""
    for node in churn.nodes:
        for name in list(node.master.registry.instances):
            node.master.deregister(InstanceName(name), seconds)
        node.replicator.outbox.take()
        node.now = seconds + 2 * TTL_S
        node.expire()
    assert all(ticket.outcome is not None for ticket in churn.tickets)
    for node in churn.nodes:
        master, replicator = node.master, node.replicator
        fleet = master.registry.fleet("m")
        assert (len(master.ledger), master.waiting, master.queues) == (0, 0, {})
        assert (len(fleet.blocks), len(fleet.media), len(fleet.expected)) == (0, 0, 0)
        assert (fleet.pending, fleet.by_slot) == ({}, {})
        homes = replicator.homes
        assert (homes.elsewhere, homes.here, len(replicator.others)) == ({}, {}, 0)
        for pool in fleet.pools.values():
            assert float(pool.requests.sum()) == 0.0
        left = {name: n for name, n in tables(node).items() if name in TRANSIENT and n}
        assert left == {}


def check_bounds(master: Master) -> None:
    fleet = master.registry.fleet("m")
    assert len(master.ledger) <= TTL_S * PER_S + PER_S
    assert len(fleet.blocks) <= 400
    assert len(fleet.media) <= 200
    assert len(fleet.pending) <= 200
    assert fleet.slots <= 2 * len(ROLES)
    assert len(master.ledger._expiry) <= 2 * len(master.ledger) + 1024 + PER_S
    for index in (fleet.blocks, fleet.media):
        holdings = index._holdings.values()
        logged = sum(len(holding.log) for holding in holdings)
        assert logged <= 2 * sum(holding.count for holding in holdings) + 65 * len(ROLES)


def tables(root: Any) -> Counter[str]:
    """Entries of every container that hangs on an object, and the objects, by class."""
    sizes, seen, todo = Counter[str](), set[int](), deque([root])
    while todo:
        value = todo.popleft()
        for name, part in _parts(value):
            if id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, dict | list | set | deque):
                sizes[f"{type(value).__name__}.{name}"] += len(part)
            elif isinstance(part, np.ndarray):
                sizes[f"{type(value).__name__}.{name}"] += part.size
            elif type(part).__module__.startswith("services."):
                sizes[f"{type(part).__name__} objects"] += 1
            todo.append(part)
    return sizes


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from (("values", part) for part in value.values() if _holds(part))
    elif isinstance(value, list | deque | tuple):
        yield from (("items", part) for part in value if _holds(part))
    elif type(value).__module__.startswith(("services.", "tests.")):
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in [*slots, *getattr(value, "__dict__", ())]:
            yield name, getattr(value, name, None)


def _holds(part: Any) -> bool:
    """Whether it may have containers in it."""
    return not isinstance(part, int | float | str | bytes | None)
