"""Instances that make embeddings and need them too: their own, and those of others."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from connectors.base import EC_TENSOR, ECConnector, Entry, Tensors
from connectors.config import ECConfig, KVConfig
from connectors.ec.arena import ArenaEC
from connectors.factory import Connectors
from connectors.transports.base import Transfer
from protocol.errors import EmbeddingLost, TransferError
from tests.conftest import Pass
from tests.support.links import BOUND_S, MEMORY, need, rows

SIZE = 8 << 10  # of a store: four entries
LANDING = 8 << 10


class Group:
    """Instances that are polled together."""

    def __init__(self, transport: Any, folder: Path, count: int, **fields: Any) -> None:
        self.members: list[ECConnector] = []
        config = ECConfig(
            transport, ec_buffer_size=SIZE, landing_size=LANDING, path=str(folder), **fields
        )
        for _ in range(count):
            connectors = Connectors(config, KVConfig())
            self.members.append(connectors.make_ec("model", produces=True, consumes=True))

    def until(self, done: Callable[[], Any]) -> None:
        deadline = time.monotonic() + BOUND_S
        while not done():
            assert time.monotonic() < deadline
            for member in self.members:
                member.poll()
            time.sleep(0.0005)

    def loaded(self, ec: ECConnector, name: str, params: dict[str, Any] | None) -> Tensors:
        load, found = ec.fetch(name, params), list[Tensors]()
        try:
            self.until(lambda: found.extend(t for t in [load.poll()] if t is not None) or found)
        finally:
            load.cancel()
        return found[0]

    def sound(self) -> None:
        self.until(lambda: not any(member.active for member in self.members))
        assert [problem for member in self.members for problem in member.check_integrity()] == []

    def close(self) -> None:
        for member in self.members:
            member.close()


@pytest.fixture(scope="module", params=MEMORY)
def group(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Group]:
    need(request.param)
    group = Group(request.param, tmp_path_factory.mktemp("both"), 2)
    yield group
    group.sound()
    group.close()


@pytest.mark.parametrize("named", [True, False])
def test_an_instance_gets_what_it_made_itself(group: Group, named: bool) -> None:
    ours, entry = group.members[0], rows()
    params = ours.offer("a", Entry(entry, ("r",)))
    tensors = group.loaded(ours, "a", params if named else None)
    assert torch.equal(tensors[EC_TENSOR], entry[EC_TENSOR])
    ours.clear()
    assert torch.equal(tensors[EC_TENSOR], entry[EC_TENSOR]), "a copy of its own"
    group.sound()


def test_an_instance_waits_for_what_it_makes_itself(group: Group) -> None:
    """And is seen to wait, so that what it needs now takes the place of what merely waits."""
    ours, entry = group.members[0], rows()
    ours.offer("a", Entry(rows(32), ("r",)))
    load = ours.fetch("b", ours.endpoint())
    assert load.poll() is None and ours.wanted("b")
    assert ours.offer("b", Entry(entry, ())) is None
    left: dict[str, Entry] = {}
    assert ours.swap("b", Entry(entry, ("r",)), left) is not None and set(left) == {"a"}
    tensors = load.poll()
    assert tensors is not None and torch.equal(tensors[EC_TENSOR], entry[EC_TENSOR])
    ours.release("b", ours.endpoint(), "r")
    assert ours.offer("c", Entry(rows(32), ())) is not None, "b is kept for no request"
    ours.clear()
    group.sound()


@pytest.mark.parametrize("named", [True, False])
def test_an_instance_gets_what_another_made(group: Group, named: bool) -> None:
    """More than the room where they stay has, while its own store is full."""
    ours, other = group.members
    assert ours.offer("mine", Entry(rows(32), ("r",))) is not None
    got: list[tuple[Tensors, Tensors]] = []
    for number in range(6):
        entry = rows()
        params = other.offer(f"{number}", Entry(entry, ()))
        tensors = group.loaded(ours, f"{number}", params if named else None)
        got.append((tensors, entry))
    for tensors, entry in got:
        assert torch.equal(tensors[EC_TENSOR], entry[EC_TENSOR])
    for member in group.members:
        member.clear()
    group.sound()


def test_a_request_that_is_done_is_done_everywhere(group: Group) -> None:
    ours, other = group.members
    for member in group.members:
        member.offer("a", Entry(rows(32), ("r",)))
    group.loaded(ours, "a", other.endpoint())
    ours.release("a", None, "r")
    for member in group.members:
        group.until(lambda member=member: member.offer("b", Entry(rows(32), ())) is not None)
        member.clear()
    group.sound()


def test_what_no_instance_makes_is_lost(group: Group, passes: Pass) -> None:
    ours = group.members[0]
    load = ours.fetch("nobody-made-it", ours.endpoint())
    assert load.poll() is None and ours.active
    passes(3.0)
    with pytest.raises(EmbeddingLost):
        group.until(load.poll)
    load.cancel()
    group.sound()


def test_what_is_on_its_way_is_waited_for(group: Group, passes: Pass) -> None:
    ours = group.members[0]
    load = ours.fetch("late", ours.endpoint())
    passes(3.0)
    ours.poll(["late"])
    assert load.poll() is None
    passes(1.0)
    ours.poll()
    with pytest.raises(EmbeddingLost):
        group.until(load.poll)
    load.cancel()
    group.sound()


def test_a_producer_only_has_no_landing(tmp_path: Path) -> None:
    """What it made it reads itself; nothing of others can land."""
    need("ucx")
    group = Group("ucx", tmp_path, 2, role="ec_producer")
    ours, other = group.members
    entry = rows()
    ours.offer("a", Entry(entry, ()))
    assert torch.equal(group.loaded(ours, "a", None)[EC_TENSOR], entry[EC_TENSOR])
    params = other.offer("b", Entry(entry, ()))
    with pytest.raises(TransferError, match="cannot map"):
        group.loaded(ours, "b", params)
    group.close()


def test_an_encoder_whose_region_is_gone_says_so(tmp_path: Path) -> None:
    group = Group("shm", tmp_path, 1)
    group.sound()
    (region,) = tmp_path.glob("region-*")
    region.unlink()
    (problem,) = group.members[0].check_integrity()
    assert "socket" in problem
    group.close()


class Stalled(Transfer):
    """A read that goes on until it is let go."""

    def __init__(self) -> None:
        self.over = False

    def poll(self) -> bool:
        return False

    def cancel(self) -> None:
        pass

    @property
    def settled(self) -> bool:
        return self.over


@pytest.mark.parametrize("closing", [False, True])
def test_a_producer_keeps_what_is_read_for_one_that_has_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    need("ucx")
    group = Group("ucx", tmp_path, 2)
    ours, other = group.members
    assert isinstance(ours, ArenaEC) and isinstance(other, ArenaEC)
    params, read, begun = other.offer("a", Entry(rows(), ())), Stalled(), []
    monkeypatch.setattr(ours._node.transport, "read", lambda *_: begun.append(1) or read)
    load = ours.fetch("a", params)
    group.until(lambda: load.poll() or begun)
    load.cancel()
    for _ in range(50):
        ours.poll()
        other.poll()
        time.sleep(0.001)
    assert other.store.active and ours.active, "it may still be read"
    if closing:
        ours.close()
        group.members.remove(ours)
    else:
        read.over = True
    group.until(lambda: not other.store.active)
    group.sound()
    group.close()
