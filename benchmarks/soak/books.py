"""What a stack holds: memory, descriptors, segments, files, blocks, leases, embeddings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.soak.stack import LEASE_S, Service, Stack

# Peers let go of a dead producer's memory half a minute after its connection broke.
_SETTLE_S = max(6 * LEASE_S, 45.0)
_REGION = "memfd:triptych"
_DONE, _WANT = ".done-", ".want"  # of `connectors.ec.lease_files`


@dataclass
class Books:
    """What a stack holds while it is idle, by service where there are several."""

    memory: dict[str, int] = field(default_factory=dict)  # bytes that are private to its processes
    descriptors: dict[str, int] = field(default_factory=dict)  # that they have open
    blocks: dict[str, int] = field(default_factory=dict)  # free in its KV pool
    held: dict[str, int] = field(default_factory=dict)  # bytes by connector
    # Problems that the integrity check found, and what is still held for requests
    problems: list[str] = field(default_factory=list)
    segments: int = 0  # of shared memory
    segment_bytes: int = 0  # their sizes together
    files: int = 0  # in the stack's folder


def settle(stack: Stack) -> Books:
    """Drop the caches, wait until nothing is held for a request, and look. What is still held after
    some leases' time is in `problems`."""
    for worker in stack.workers:
        for path in ("/reset_prefix_cache", "/reset_encoder_cache"):
            worker.call("POST", path)
    deadline = time.monotonic() + _SETTLE_S
    while True:
        books = _look(stack)
        if not books.problems or time.monotonic() > deadline:
            return books
        time.sleep(0.25)


def _look(stack: Stack) -> Books:
    books = Books()
    for service in stack.services:
        books.memory[service.name] = sum(map(private_bytes, service.pids()))
        books.descriptors[service.name] = sum(map(_descriptors, service.pids()))
    for worker in stack.workers:
        _, report = worker.call("GET", "/integrity")
        _note(books, worker, report)
    segments, orphaned = _shared_memory([p for worker in stack.workers for p in worker.pids()])
    books.segments = len(segments)
    books.segment_bytes = sum(segments.values())
    if orphaned:
        books.problems.append(f"{orphaned} regions of dead owners are still mapped")
    files = _files(stack.root)
    books.files = len(files)
    marks = sum(file.name.startswith(_DONE) or file.parent.name == _WANT for file in files)
    if marks:  # a lease removes those of items that the store had already dropped
        books.problems.append(f"{marks} marks of requests are left on shared storage")
    return books


def _note(books: Books, worker: Service, report: dict[str, Any]) -> None:
    gauges = report["gauges"]
    busy = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
            "num_items_encoding")  # fmt: skip
    books.problems += [f"{worker.name}: {problem}" for problem in report["problems"]]
    books.problems += [f"{worker.name}: {name} {gauges[name]}" for name in busy if gauges.get(name)]
    if "kv_blocks_free" in gauges:
        books.blocks[worker.name] = int(gauges["kv_blocks_free"])
    for one in report["transfers"]:
        name = f"{worker.name} {one['connector']}"
        books.held[name] = int(one["bytes_held"])
        if one["bytes_held"]:
            books.problems.append(f"{name}: {one['bytes_held']} bytes are held")


def totals(stack: Stack) -> dict[str, int]:
    """Sums over the workers' present lives: leases that lapsed, messages refused, failures."""
    sums: dict[str, int] = {}
    for worker in stack.workers:
        _, report = worker.call("GET", "/integrity")
        for one in report["transfers"]:
            for name in ("transfers", "evictions", "leases_expired", "refused"):
                key = f"{one['connector']} {name}"
                sums[key] = sums.get(key, 0) + int(one[name])
            for cause, count in one["failures"].items():
                key = f"{one['connector']} failed: {cause}"
                sums[key] = sums.get(key, 0) + int(count)
    return sums


def private_bytes(pid: int) -> int:
    """Memory that this process shares with no file and no other process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _shared_memory(pids: Iterable[int]) -> tuple[dict[int, int], int]:
    """Bytes of each region by inode, and how many without an owner are still mapped. Only owners
    map a region to write to it."""
    sizes: dict[int, int] = {}
    owned: set[int] = set()
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if _REGION in line and line.split()[1] == "rw-s":
                owned.add(int(line.split()[4]))
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if _REGION in str(link.readlink()):
                    sizes[link.stat().st_ino] = link.stat().st_blocks * 512
    return {inode: sizes[inode] for inode in owned}, len(sizes.keys() - owned)


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found = [path for path in folder.rglob("*") if path.is_file()]
    return found
