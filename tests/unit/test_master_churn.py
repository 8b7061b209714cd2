"""An hour of virtual time in which workers die, flap and restart, and proxies forget to report."""

import random

from protocol.errors import TriptychError
from protocol.kv_events import BlockRemoved, BlockStored, EmbeddingStored, EventBatch, EventSource
from protocol.registry import (
    Finished,
    Heartbeat,
    InstanceInfo,
    InstanceName,
    InstanceRole,
    Load,
    MediaNeed,
    Placement,
    ScheduleRequest,
)
from services.master.admission import Ticket
from services.master.config import MasterConfig
from services.master.master import Master

ROLES: list[InstanceRole] = ["encode"] * 4 + ["prefill"] * 6 + ["decode"] * 6
HOUR_S = 3600
PER_S = 5
TTL_S = 60.0
LOAD = Load(free_blocks=500, total_blocks=500)


class Churn:
    """A fleet of which some workers have events and some have not."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.master = Master(
            MasterConfig(
                seed=seed, request_ttl=TTL_S, predict_ttl=20.0, lease=5.0, max_queue=50,
                busy_queue_ms=2_000.0, queue_timeout=5.0, breaker_open=10.0,
            )
        )  # fmt: skip
        self.alive: dict[int, int] = {}
        self.placed: list[str] = []
        self.tickets: list[Ticket] = []
        self.count = 0

    def info(self, worker: int) -> InstanceInfo:
        sources = [EventSource("tcp://127.0.0.1:1")] if worker % 2 else []
        return InstanceInfo(
            f"w{worker}", ROLES[worker], f"http://w{worker}", "m", str(self.alive[worker]),
            events=sources, load=LOAD,
        )  # fmt: skip

    def second(self, now: float) -> None:
        rng = self.rng
        for worker in range(len(ROLES)):
            self.live_or_die(worker, now)
        for _ in range(PER_S):
            self.request(now + rng.random())
        while len(self.placed) > 20:
            name = self.placed.pop(rng.randrange(len(self.placed)))
            failed = [f"w{rng.randrange(len(ROLES))}"] if rng.random() < 0.05 else []
            if rng.random() < 0.9:
                self.master.finished(Finished(name, failed=failed), now + 1)
        self.master.expire(now + 1)

    def live_or_die(self, worker: int, now: float) -> None:
        fate, master = self.rng.random(), self.master
        if worker not in self.alive or fate < 0.002:
            self.alive[worker] = self.rng.randrange(1 << 30)
            master.register(self.info(worker), now)
        elif fate < 0.004:
            master.deregister(InstanceName(f"w{worker}"), now)
        elif fate < 0.9:
            beat = Heartbeat(f"w{worker}", str(self.alive[worker]), LOAD)
            if not master.heartbeat(beat, now).known:
                master.register(self.info(worker), now)
            self.events(worker)

    def events(self, worker: int) -> None:
        rng = self.rng
        stored = [rng.randrange(400) for _ in range(10)]
        gone = [rng.randrange(400) for _ in range(10)]
        picture = EmbeddingStored(f"x{rng.randrange(30)}")
        batch = EventBatch(0.0, [BlockStored(list(stored)), BlockRemoved(list(gone)), picture])
        if worker % 2:
            self.master.apply(self.info(worker), batch)

    def request(self, now: float) -> None:
        rng, name = self.rng, f"r{self.count}"
        self.count += 1
        start = rng.randrange(40) * 10
        items = [MediaNeed(f"x{rng.randrange(200)}", 50, 10)] if rng.random() < 0.5 else []
        asked = ScheduleRequest(
            name, 200, "m", list(range(start, start + 10)), items=items, max_tokens=20,
            priority=rng.randrange(101), tenant=str(rng.randrange(3)),
            deadline_s=rng.choice([None, 0.5, 30.0]),
        )  # fmt: skip
        try:
            placed = self.master.schedule(asked, now)
        except TriptychError:
            return
        if isinstance(placed, Placement):
            self.placed.append(name)
        else:
            self.tickets = [t for t in [*self.tickets, placed] if t.outcome is None]


def test_an_hour_of_churn_leaves_nothing_behind() -> None:
    churn = Churn(3)
    for second in range(HOUR_S):
        churn.second(float(second))
        if second % 60 == 0:
            check_bounds(churn.master)
    master = churn.master
    assert master.totals.placed > HOUR_S
    assert master.totals.lapsed > 0
    assert master.totals.given_up > 0
    for name in list(master.registry.instances):
        master.deregister(InstanceName(name), HOUR_S)
    master.expire(HOUR_S + 2 * TTL_S)
    fleet = master.registry.fleet("m")
    assert (len(master.ledger), master.waiting, master.queues) == (0, 0, {})
    assert (len(fleet.blocks), len(fleet.media), len(fleet.expected)) == (0, 0, 0)
    assert (fleet.pending, fleet.by_slot) == ({}, {})
    assert all(ticket.outcome is not None for ticket in churn.tickets)
    for pool in fleet.pools.values():
        assert float(pool.requests.sum()) == 0.0
        assert sum(map(len, pool._unseen)) == 0


def check_bounds(master: Master) -> None:
    fleet = master.registry.fleet("m")
    assert len(master.ledger) <= TTL_S * PER_S + PER_S
    assert len(fleet.blocks) <= 400
    assert len(fleet.media) <= 200
    assert len(fleet.pending) <= 200
    assert fleet.slots <= 2 * len(ROLES)
    assert len(master.ledger._expiry) <= 2 * len(master.ledger) + 1024 + PER_S
    for index in (fleet.blocks, fleet.media):
        logged = sum(map(len, index._logs.values()))
        assert logged <= 2 * sum(index._counts.values()) + 65 * len(ROLES)
