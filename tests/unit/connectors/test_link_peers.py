"""Peers that restart, or make the same picture, and clocks that jump."""

import ast
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from connectors.base import EC_TENSOR, Entry
from connectors.ec.load import ArenaLoad
from connectors.messages import ECHeld
from protocol.errors import ConfigError
from tests.support.links import BOUND_S, PACKAGES, Link, Side, linked, rows

ROOT = Path(__file__).parents[3]


def test_a_clock_that_jumps_ends_nothing(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day back and a day ahead, in the middle of transfers of both kinds."""
    now, before = time.time, link.producer.kv.stats().leases_expired
    for jump_s in (-86_400.0, 86_400.0):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: now() + jump_s)
        load = link.consumer.kv.fetch(link.offer([1]), 1)
        waiting = link.consumer.ec.fetch("d", None)
        link.until(lambda load=load, waiting=waiting: (load.poll(), waiting.poll(), load.fed)[2])
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: now() - jump_s)
        load.place(0, [0])
        link.copied(load)
        link.producer.ec.offer("d", Entry(rows(), ()))
        link.until(waiting.poll)
        waiting.cancel()
        link.producer.ec.clear()
    assert link.producer.kv.stats().leases_expired == before


def test_no_connector_asks_what_time_it_is() -> None:
    """Durations on the monotonic clock only: `time.time` and dates appear nowhere."""
    found = []
    for path in [*(ROOT / "connectors").rglob("*.py"), *(ROOT / "services/engine").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                if name in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow"):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: from time import")
    assert found == []


def test_two_encoders_that_make_one_picture(link: Link) -> None:
    """Both write it at once; a consumer of both reads one whole entry, and neither keeps a pin."""
    second = Side(link.transport, link.folder, produces=True)
    entry = rows()
    try:
        load = link.consumer.ec.fetch("e", None)
        every = (link.producer, second, link.consumer)
        for _ in range(20):
            assert load.poll() is None
            for side in every:
                side.poll()
        for side in (link.producer, second):
            side.ec.offer("e", Entry(entry, ()))
        got: list[Any] = []
        link.until(lambda: got.extend(t for t in [load.poll()] if t is not None) or got, *every)
        assert torch.equal(got[0][EC_TENSOR], entry[EC_TENSOR])
        link.until(lambda: not (second.ec.active or link.producer.ec.active), *every)
        assert second.ec.check_integrity() == link.producer.ec.check_integrity() == []
    finally:
        second.close()
        link.producer.ec.clear()


def test_an_encoder_whose_grant_came_too_late_says_nothing_of_the_entry(link: Link) -> None:
    """It answers that the grant it gets back did not hold; the one that was read did."""
    reader = getattr(link.consumer.ec, "_reader", None)
    if reader is None:
        pytest.skip("files are read without grants")
    entry = rows()
    link.producer.ec.offer("g", Entry(entry, ()))
    load = link.consumer.ec.fetch("g", None)
    assert isinstance(load, ArenaLoad)
    link.until(lambda: load._told is not None or load.poll() is not None)
    reader._answered(("127.0.0.1", 1), ECHeld(load.query, False))
    got: list[Any] = []
    link.until(lambda: got.extend(t for t in [load.poll()] if t is not None) or got)
    assert torch.equal(got[0][EC_TENSOR], entry[EC_TENSOR])
    link.producer.ec.clear()


def test_producers_are_looked_for_again_until_one_is_asked(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each poll, as handshakes may end between two; every quarter of a second from then on."""
    reader = getattr(link.consumer.ec, "_reader", None)
    if reader is None:
        pytest.skip("files are found without asking")
    looks: list[int] = []
    producers = reader.producers
    monkeypatch.setattr(reader, "producers", lambda: looks.append(1) or producers())
    with monkeypatch.context() as patch:
        patch.setattr(reader, "ready", lambda address: None)
        load = link.consumer.ec.fetch("nothing", None)
        assert isinstance(load, ArenaLoad)
        for count in (1, 2, 3):
            assert load.poll() is None and len(looks) == count
    link.until(lambda: load.poll() or load._asked)
    assert load.poll() is None
    asked, load._next_look = len(looks), time.monotonic() + 60.0
    assert load.poll() is None and len(looks) == asked
    load.cancel()


def test_consumers_hold_nothing_that_is_awaited(link: Link) -> None:
    assert link.producer.ec.awaited == link.consumer.ec.awaited == 0


def started_at(port: int, transport: str, folder: Path) -> Side:
    """ZMQ gives a port back some time after it was closed."""
    deadline = time.monotonic() + BOUND_S
    while True:
        try:
            return Side(transport, folder, produces=True, port=port)
        except ConfigError:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("transport", PACKAGES)
def test_a_producer_that_restarts_at_its_address_is_another_one(
    transport: str, tmp_path: Path
) -> None:
    """Between two looks of its consumer: what it held before is not taken for what it holds."""
    with linked(transport, tmp_path, timeout_s=5.0) as link:
        link.works()
        port = link.producer.node.server.port
        params = link.producer.kv.endpoint()
        link.producer.close()
        link.producer = started_at(port, transport, tmp_path)
        stale = msgspec.structs.replace(link.offer([1]), instance_id=params["remote_engine_id"])
        load = link.consumer.kv.fetch(stale, 1)
        load.place(0, [0])
        link.fails(load)
        link.producer.kv.release(stale.request_id, "")
        link.works()
