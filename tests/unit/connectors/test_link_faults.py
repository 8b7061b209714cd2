"""Transfers that go wrong half-way, over every transport: noticed, counted, made good."""

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from connectors.base import EC_TENSOR, Entry
from connectors.ec.load import ArenaLoad
from connectors.kv.fetch import Fetch
from connectors.messages import ECDone, KVFetched, Release
from protocol.errors import ConfigError, TransferError, TransferTimeout
from tests.support.links import BOUND_S, MEMORY, PACKAGES, Link, Side, linked, rows

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", params=list(PACKAGES))
def link(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Link]:
    with linked(request.param, tmp_path_factory.mktemp("link")) as link:
        link.works()
        yield link
        link.works()


def mute(side: Side, monkeypatch: pytest.MonkeyPatch, *kinds: type) -> None:
    """What this side says of these kinds is lost on the way."""
    client = side.node.client
    said = client.send
    monkeypatch.setattr(
        client, "send", lambda peer, message: isinstance(message, kinds) or said(peer, message)
    )


def ec_leases(side: Side) -> int:
    return side.ec.stats().leases_expired


def test_a_lost_confirmation_costs_its_own_request_only(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer gives up in time, the producer's lease ends what nobody confirms."""
    ref = link.offer([1, 2])
    before = link.producer.kv.stats().leases_expired
    load = link.consumer.kv.fetch(ref, 2)
    load.place(0, [0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(
            link.consumer.kv.consumer,
            "options",
            type(link.consumer.kv.consumer.options)(1024, heartbeat_s=10.0, silence_s=0.5),
        )
        mute(link.consumer, patch, KVFetched, Release)
        assert isinstance(link.fails(load), TransferTimeout)
    link.producer.lapse()
    link.until(lambda: ref.request_id in link.producer.ended)
    assert link.producer.kv.stats().leases_expired == before + 1
    link.works()


def test_a_lost_release_is_made_up_for_by_the_lease(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = link.offer([1])
    before = link.producer.kv.stats().leases_expired
    load = link.consumer.kv.fetch(ref, 1)
    with monkeypatch.context() as patch:
        mute(link.consumer, patch, Release)
        link.until(lambda: load.poll() or load.fed)
        load.cancel()
    link.producer.lapse()
    link.until(lambda: ref.request_id in link.producer.ended)
    assert link.producer.kv.stats().leases_expired == before + 1


def test_an_embedding_whose_reader_says_nothing_is_let_go(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that never says it is done, and a read that is never confirmed."""
    if link.transport not in MEMORY:
        pytest.skip("for files see test_ec_files")
    before = ec_leases(link.producer)
    params = link.producer.ec.offer("a", Entry(rows(), ("r",)))
    load = link.consumer.ec.fetch("a", params)
    assert isinstance(load, ArenaLoad)
    with monkeypatch.context() as patch:
        mute(link.consumer, patch, ECDone)
        link.until(lambda: load.poll() or load._tensors is not None)
        load._deadline = 0.0
        with pytest.raises(TransferTimeout):
            load.poll()
        load.cancel()
    large = Entry({EC_TENSOR: torch.zeros(252, 64)}, ())
    assert link.producer.ec.offer("b", large) is None, "what is read stays"
    link.producer.lapse()
    link.until(lambda: link.producer.ec.offer("b", large) is not None)
    assert ec_leases(link.producer) == before + 2
    link.producer.ec.clear()


def test_blocks_that_were_let_go_while_they_were_read_are_not_used(link: Link) -> None:
    """The race: everything is copied, then the producer takes its blocks back before it is asked
    whether it held them."""
    ref = link.offer([1, 2])
    load = link.consumer.kv.fetch(ref, 2)
    load.place(0, [0, 1])
    link.until(lambda: load.poll() or load.fed)
    assert isinstance(load, Fetch)

    def asked() -> bool:
        link.producer.node.transport.poll()
        return load.poll() is None and load._confirmed is not None

    link.until(asked, link.consumer)
    link.producer.kv.release(ref.request_id, "preempted")
    link.fails(load)
    link.works()


def test_an_embedding_that_was_let_go_while_it_was_read_is_not_used(link: Link) -> None:
    if link.transport not in MEMORY:
        pytest.skip("a file does not change while it is read")
    params = link.producer.ec.offer("c", Entry(rows(), ()))
    before = ec_leases(link.producer)
    load = link.consumer.ec.fetch("c", params)
    link.until(lambda: link.producer.ec.active or load.poll())
    link.producer.lapse()
    link.until(lambda: ec_leases(link.producer) > before, link.producer)
    with pytest.raises(TransferError, match="expired"):
        link.until(load.poll)
    load.cancel()
    assert ec_leases(link.producer) == before + 1
    link.works()


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
    """Both write it at once; whoever asks both reads one whole entry, and neither keeps a pin."""
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


def damage(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data if how == "flipped" else data[: len(data) // 2])


@pytest.mark.parametrize("how", ["deleted", "flipped", "truncated"])
def test_blocks_that_are_damaged_on_disk_are_refused(tmp_path: Path, how: str) -> None:
    with linked("shared_storage", tmp_path) as link:
        ref = link.offer([1, 2])
        load = link.consumer.kv.fetch(ref, 2)
        link.until(lambda: load.poll() or load.fed)
        (block,) = tmp_path.glob(".regions-*/kv/2")
        damage(block, how)
        load.place(0, [0, 1])
        link.fails(load)
        link.until(lambda: ref.request_id in link.producer.ended)
        link.works()


FULL = """
import os
import sys
from pathlib import Path
from connectors.base import EC_TENSOR, Entry
from protocol.errors import TransferError
from tests.support.links import Link
import torch

del os.memfd_create
link = Link("shm", Path(sys.argv[1]) / "shm")
ec = link.producer.ec
large = {EC_TENSOR: torch.zeros(60, 64)}
held = {}
try:
    for name in "abcd":
        held[name] = ec.offer(name, Entry(large, ("r",)))
    print("the disk takes everything")
except TransferError as error:
    print("refused:", error.message)
for name, params in held.items():
    link.consumer.ec.release(name, params, "r")
link.until(lambda: ec.clear() or not ec.store.size)
link.works()
link.close()
print("went on")
"""


def test_a_full_file_system_fails_one_entry_only(tmp_path: Path) -> None:
    """Without memfd regions are files in TMPDIR: a tmpfs with room for the pools and most of an
    embedding store."""
    mount = f"mount -t tmpfs -o size=72k none {tmp_path} && exec {sys.executable} - {tmp_path}"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        input=FULL, capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no mount of our own here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused: shm: cannot allocate"), done.stdout
    assert done.stdout.endswith("went on\n")
