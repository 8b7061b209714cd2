"""Two masters that share a Redis: how late one hears what the other has placed."""

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from benchmarks.bench_master.http import Connection, serving
from benchmarks.bench_master.open_loop import WORKERS, Step, drive
from benchmarks.common.processes import ending
from benchmarks.common.rows import Row, at_most

STATED_MS = 100.0
"""What docs/benchmarks/master.md states."""
_PATIENCE_S = 20.0
_RATE = 200.0


@contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a Redis of our own, in memory only."""
    beside = Path(sys.executable).with_name("redis-server")
    found = shutil.which("redis-server") or (str(beside) if beside.is_file() else "")
    if not found:
        raise RuntimeError("no redis-server on PATH: scripts/setup.sh installs one")
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        socket = Path(folder) / "socket"
        command = [found, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        with ending(subprocess.Popen(command, stdout=subprocess.DEVNULL)):
            deadline = time.monotonic() + _PATIENCE_S
            while not socket.exists():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"redis-server did not start within {_PATIENCE_S:g} s")
                time.sleep(0.02)
            yield f"unix://{socket}"


async def text_of(address: tuple[str, int]) -> str:
    """A master's metrics."""
    lane = Connection(*await asyncio.open_connection(*address))
    return (await lane.get("/metrics")).decode()


def quantile(text: str, name: str, share: float) -> float:
    """Of a histogram, within its bucket by interpolation; in its unit."""
    pattern = rf'^triptych_master:{name}_bucket{{le="(\S+)"}} (\S+)$'
    found = [(float(le), float(count)) for le, count in re.findall(pattern, text, re.M)]
    wanted, below, before = share * found[-1][1], 0.0, 0.0
    for bound, count in found:
        if count >= wanted > 0:
            return below + (bound - below) * (wanted - before) / (count - before)
        below, before = bound, count
    return 0.0


def value(text: str, name: str) -> float:
    found = re.search(rf"^triptych_master:{re.escape(name)} (\S+)$", text, re.M)
    return float(found[1]) if found else -1.0


async def until_agreed(first: tuple[str, int], second: tuple[str, int]) -> float:
    """Seconds until both index the same blocks, and the second counts what the first has placed."""
    begun = time.monotonic()
    entries = 'index_entries{kind="blocks",model="m"}'
    while time.monotonic() < begun + _PATIENCE_S:
        ours, theirs = await text_of(first), await text_of(second)
        same = value(ours, entries) == value(theirs, entries) > 0
        if same and value(ours, "requests_in_flight") == value(
            theirs, "requests_in_flight_of_others"
        ):
            return time.monotonic() - begun
    raise RuntimeError(f"the masters did not agree within {_PATIENCE_S:g} s")


def agreement_rows(blocks: int, seconds: float) -> list[Row]:
    """Workers beat at the first master and are asked for through it; the second hears of them."""
    with redis_server() as url:
        flags = ("--redis-url", url)
        with (
            serving("services.master", *flags) as (first, pid),
            serving("services.master", *flags) as (second, _),
        ):
            step = Step(_RATE, seconds)
            uvloop.run(drive(first, pid, blocks, [step], samples=False))
            agreed = uvloop.run(until_agreed(first, second))
            text = uvloop.run(text_of(first))
    p50, p99 = (quantile(text, "replication_delay_seconds", share) * 1e3 for share in (0.5, 0.99))
    count = sum(WORKERS.values())
    name = f"two masters, {count:,} workers, {_RATE:g} placements/s:"
    return [
        Row(f"{name} a change is heard after, p50, ms", p50),
        at_most(f"{name} the same, p99, ms", p99, STATED_MS, 1),
        Row(f"{name} agree on blocks and requests after the load, s", agreed),
    ]
