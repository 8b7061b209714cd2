"""Which sources are asked for a replay at the same time."""

import asyncio
import time

import pytest

from protocol.kv_events import BlockStored
from protocol.registry import InstanceInfo
from services.engine.publishing import EventThread
from services.master.config import MasterConfig
from services.master.events import replay_turns
from services.master.events.replay_turns import ReplayTurns
from services.master.events.subscriber import Subscriber
from services.master.listener import MasterListener
from services.master.master import Master
from services.membership.config import parse_events
from tests.support.waiting import eventually


class Asker:
    def __init__(self, name: int, begun: list[tuple[int, int]]) -> None:
        self.name, self.begun = name, begun

    def begin(self, start: int) -> None:
        self.begun.append((self.name, start))


@pytest.fixture
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_turns, "_AT_ONCE", 2)


async def test_turns_go_round_in_the_order_they_were_wanted(two_at_once: None) -> None:
    begun: list[tuple[int, int]] = []
    turns, askers = ReplayTurns(), [Asker(name, begun) for name in range(5)]
    for asker in askers:
        turns.want(asker, -1)
    assert begun == [(0, -1), (1, -1)]
    turns.want(askers[1], 7)
    assert begun[2:] == [(1, 7)], "one that has the turn keeps it"
    turns.done(askers[3])
    turns.done(askers[0])
    turns.done(askers[0])
    assert begun[3:] == [(2, -1)]
    turns.done(askers[2])
    assert begun[4:] == [(4, -1)], "one that wanted no more is left out"
    for asker in askers:
        turns.done(asker)
    assert turns.under_way == 0


async def test_a_silent_source_does_not_hold_up_the_next(
    two_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_turns, "_SILENT_S", 0.05)
    begun: list[tuple[int, int]] = []
    turns, askers = ReplayTurns(), [Asker(name, begun) for name in range(4)]
    for asker in askers:
        turns.want(asker, -1)
    turns.heard(askers[0])
    await eventually(lambda: (2, -1) in begun and (3, -1) in begun)
    assert turns.under_way <= 2
    turns.done(askers[0])
    for asker in askers:
        turns.done(asker)
    assert turns.under_way == 0


class Watched(MasterListener):
    """A master that follows workers' events; `most`: replays that were under way at once."""

    def __init__(self) -> None:
        self.master = Master(MasterConfig(), None, self)
        self.subscriber = Subscriber(self.master.registry)
        self.most = 0

    def joined(self, info: InstanceInfo) -> None:
        self.subscriber.joined(info)
        self.most = max(self.most, self.subscriber._turns.under_way)

    def left(self, info: InstanceInfo) -> None:
        self.subscriber.left(info)


async def test_a_new_master_has_all_that_its_workers_hold(two_at_once: None) -> None:
    """Workers hold more than their replays reach back to, and publish while the master asks."""
    config = parse_events('{"buffer_steps": 1}', "127.0.0.1", default=True)
    assert config is not None
    threads = [EventThread(config.blocks(), None) for _ in range(12)]
    for number, thread in enumerate(threads):
        for step in range(3):
            thread.hand(([BlockStored([number, 1000 * step + number])], []))
    watched = Watched()
    for number, thread in enumerate(threads):
        info = InstanceInfo(
            f"w{number}", "prefill", f"http://w{number}:1", "m", events=thread.sources
        )
        watched.master.register(info, time.monotonic())
    for number, thread in enumerate(threads):
        thread.hand(([BlockStored([9000 + number])], []))
    blocks = watched.master.registry.fleet("m").blocks
    wanted = [{n, 1000 + n, 2000 + n, 9000 + n} for n in range(12)]
    await eventually(lambda: [set(blocks.keys(n)) for n in range(12)] == wanted)
    await eventually(lambda: watched.subscriber.incomplete == 0)
    assert watched.most == 2
    assert watched.subscriber._turns.under_way == 0
    watched.subscriber.close()
    for thread in threads:
        await asyncio.to_thread(thread.close)


async def test_a_source_that_drips_does_not_hold_its_turn_for_ever(
    two_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_turns, "_MOST_S", 0.05)
    begun: list[tuple[int, int]] = []
    turns, askers = ReplayTurns(), [Asker(name, begun) for name in range(3)]
    for asker in askers:
        turns.want(asker, -1)

    def dripped() -> bool:
        turns.heard(askers[0])
        turns.heard(askers[1])
        return (2, -1) in begun

    await eventually(dripped)
