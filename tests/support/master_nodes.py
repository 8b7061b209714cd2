"""Several masters on virtual time, joined by a channel that may lose messages."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from protocol.kv_events import EventSource
from protocol.placement import Finished, Placement, ScheduleRequest
from protocol.registry import Heartbeat, InstanceInfo, InstanceName, Load, StageRole
from services.master.config import MasterConfig
from services.master.listener import MasterListener
from services.master.master import Master
from services.master.placement.reservation import Reservation
from services.master.placement.waiting import PlacementTicket
from services.master.replication.messages import Change, decode_message
from services.master.replication.replicator import Replicator

LEASE_S = 9.0
SOURCES = [EventSource("tcp://127.0.0.1:1")]


def encode_message(sender: str, changes: Sequence[Change]) -> bytes:
    """As `encode_messages`, in one message of any size."""
    return msgspec.msgpack.encode([sender, changes])


class Node(MasterListener):
    """A master with its replicator, as the service joins them."""

    def __init__(self, name: str, **config: Any) -> None:
        settings = MasterConfig(**{"lease": LEASE_S, "seed": 5, **config})
        self.master = Master(settings, None, self)
        self.replicator = Replicator(self.master, name, connected=True)
        self.now = 0.0

    def left(self, info: InstanceInfo) -> None:
        self.replicator.left(info)

    def over(self, report: Finished) -> None:
        self.replicator.ended(report)

    def opened(self, instance_id: str, now_ms: float) -> None:
        self.replicator.opened(instance_id, now_ms)

    def leads(self) -> bool:
        return self.replicator.leads

    def moved(self, info: InstanceInfo, now_ms: float) -> None:
        self.replicator.moved(info, now_ms / 1e3)

    def finished_elsewhere(self, report: Finished, now_ms: float) -> list[str]:
        return self.replicator.finished_elsewhere(report, now_ms)

    def placed(self, request: ScheduleRequest, held: Reservation, now_ms: float) -> None:
        self.replicator.placed(request, held, now_ms)

    def register(self, info: InstanceInfo) -> None:
        with self.replicator.because("call"):
            self.master.register(info, self.now)
        self.replicator.joined(info, self.now)

    def beat(
        self, name: str, generation: str = "", load: Load | None = None,
        role: StageRole | None = None, draining: bool = False,
    ) -> bool:  # fmt: skip
        beat = Heartbeat(name, generation, load or Load(), draining, role=role)
        answer = self.master.heartbeat(beat, self.now)
        if answer.known:
            self.replicator.beat(beat, answer.draining, self.now)
        return answer.known

    def expire(self) -> None:
        with self.replicator.because("lapse"):
            self.master.expire(self.now)
        self.replicator.others.expire(self.now)

    def deregister(self, name: str, *, failed: bool = False) -> None:
        with self.replicator.because("failure" if failed else "call"):
            self.master.deregister(InstanceName(name, failed=failed), self.now)

    def schedule(self, request: ScheduleRequest) -> Placement | PlacementTicket:
        return self.master.schedule(request, self.now)

    def place(self, name: str, **fields: Any) -> Placement:
        placed = self.schedule(
            ScheduleRequest(name, **{"prompt_tokens": 1600, "model": "m", **fields})
        )
        assert isinstance(placed, Placement)
        return placed

    @property
    def known(self) -> set[str]:
        return set(self.master.registry.instances)

    @property
    def retired(self) -> set[str]:
        return self.master.registry.changelog.retired

    def requests(self, name: str) -> float:
        instance = self.master.registry.instances[name]
        return float(instance.pool.requests[instance.row])

    def penalty(self, name: str) -> float:
        instance = self.master.registry.instances[name]
        return float(instance.pool.penalty[instance.row])


class Fleet:
    """Masters a, b, ... and the channel between them; everything goes over the wire's bytes.

    `lost`: whether a message does not arrive somewhere."""

    def __init__(
        self, count: int = 2, lost: Callable[[], bool] = lambda: False, **config: Any
    ) -> None:
        self.nodes = [Node("abc"[i], **config) for i in range(count)]
        self._lost = lost

    def deliver(self) -> None:
        for node in self.nodes:
            while changes := node.replicator.outbox.take():
                sender, heard, garbage = decode_message(
                    encode_message(node.replicator.name, changes)
                )
                assert (len(heard), garbage) == (len(changes), 0)
                for other in self.nodes:
                    if other is not node and not self._lost():
                        other.replicator.receiver.hear_all(sender, heard, other.now)

    def at(self, now: float) -> None:
        for node in self.nodes:
            node.now = now
        self.deliver()
        for node in self.nodes:
            node.expire()
        self.deliver()


def info(name: str, role: Any = "prefill_decode", **fields: Any) -> InstanceInfo:
    values = {"url": f"http://{name}:1", "model": "m", "events": SOURCES, **fields}
    return InstanceInfo(name, role, **values)


def fleet_of(*workers: str, count: int = 2, **config: Any) -> Fleet:
    """`workers` registered with the first master."""
    fleet = Fleet(count, **config)
    for name in workers:
        fleet.nodes[0].register(info(name))
    fleet.deliver()
    return fleet
