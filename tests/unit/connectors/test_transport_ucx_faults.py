"""UCX transports whose peers die, hang, or leave without closing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import TransferError, TransferTimeout
from tests.support.transport_peer import pattern
from tests.support.ucx_local import BLOCK, BOUND_S, SIZE, UCX, Local, start, until

pytestmark = UCX


def test_killed_owner_and_the_next(tmp_path: Path) -> None:
    local = Local(read_timeout_s=10 * BOUND_S)  # not what ends the reads
    for seed in (2, 3):
        owner = start(tmp_path, "mortal", seed)
        local.transport.connect("mortal", "kv", owner.describe("kv"))
        local.fetch("mortal", (0, 0, BLOCK))
        assert (local.bytes[:BLOCK] == pattern(seed, BLOCK)).all()
        reads = [local.read("mortal", (0, 0, SIZE)) for _ in range(20)]
        until(reads[0].poll, local.transport)
        owner.kill()
        local.fails(reads[-1], TransferError, "mortal")
        until(lambda reads=reads: all(r.settled for r in reads), local.transport)
        assert local.transport.check_integrity() == []
    local.transport.close()


def test_owner_that_hangs_within_a_message(tmp_path: Path) -> None:
    size = 256 << 20
    owner = start(tmp_path, "hung", 0, size)
    local = Local(size)
    local.transport.connect("hung", "kv", owner.describe("kv"))
    local.bytes[:] = 1
    transfer = local.read("hung", (0, 0, size))
    until(lambda: not local.bytes[0], local.transport)
    owner.signal(signal.SIGSTOP)
    transfer.deadline = 0.0
    local.fails(transfer, TransferTimeout, "within 20 s")
    assert not transfer.settled
    assert local.transport.check_integrity() != []
    local.transport.disconnect("hung")
    until(lambda: transfer.settled and not local.transport.check_integrity(), local.transport)
    missing = np.count_nonzero(local.bytes)
    owner.signal(signal.SIGCONT)
    owner.call("integrity")
    local.transport.poll()
    assert np.count_nonzero(local.bytes) == missing > 0
    owner.kill()
    local.transport.close()


@pytest.mark.parametrize("size", [8, BLOCK, SIZE])
def test_owner_that_hangs_before_it_sends(tmp_path: Path, size: int) -> None:
    """Nothing can come any more once the read has settled, though the owner never said so."""
    owner = start(tmp_path, "late", 3)
    local = Local()
    local.transport.connect("late", "kv", owner.describe("kv"))
    local.fetch("late", (0, 0, 8))
    local.bytes[:] = 9
    owner.signal(signal.SIGSTOP)
    pieces = [(2 * i * BLOCK, 2 * i * BLOCK, BLOCK) for i in range(50)]
    crumbs = [((100 + 2 * i) * BLOCK, (100 + 2 * i) * BLOCK, 8) for i in range(50)]
    reads = [local.read("late", (0, 0, size)), local.read("late", *pieces, *crumbs)]
    for read in reads:
        read.deadline = 0.0
        local.fails(read, TransferTimeout, "within 20 s")
    until(lambda: all(read.settled for read in reads), local.transport)
    assert local.transport.check_integrity() == []
    owner.signal(signal.SIGCONT)
    local.fetch("late", (BLOCK, BLOCK, BLOCK))
    assert (local.bytes[BLOCK : 2 * BLOCK] == pattern(3, SIZE)[BLOCK : 2 * BLOCK]).all()
    assert (local.bytes[:BLOCK] == 9).all() and (local.bytes[2 * BLOCK :] == 9).all()
    owner.kill()
    local.transport.close()


def test_process_that_does_not_close(tmp_path: Path) -> None:
    owner = start(tmp_path, "left", 1)
    description = owner.describe("kv").hex()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UCX_")}
    done = subprocess.run(
        [sys.executable, "-c", LEAVER, description],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"settings": [], "listening": ["0100007F"]}
    local = Local()
    local.transport.connect("left", "kv", owner.describe("kv"))
    local.fetch("left", (0, 0, SIZE))
    assert (local.bytes == pattern(1, SIZE)).all()
    local.transport.close()
    assert owner.call("integrity") == []
    assert owner.exit() == 0


# Prints which UCX settings are left in its environment and where it listens; leaves while it reads.
LEAVER = """
import json, os, sys
from pathlib import Path
from connectors.transports import ucx_worker
from connectors.transports.base import Range
from connectors.transports.ucx import UcxTransport
ucx_worker._CLOSE_S = 20.0
transport = UcxTransport()
transport.allocate("kv", 1 << 20, "cpu")
transport.connect("peer", "kv", bytes.fromhex(sys.argv[1]))
transport.read("peer", "kv", [Range(0, 0, 1 << 20)])
transport.poll()
links = [os.readlink(p) for p in Path("/proc/self/fd").iterdir() if p.exists()]
sockets = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
listening = {s[1].split(":")[0] for s in sockets if s[3] == "0A" and f"socket:[{s[9]}]" in links}
settings = [name for name in os.environ if name.startswith("UCX_")]
print(json.dumps({"settings": settings, "listening": sorted(listening)}))
"""
