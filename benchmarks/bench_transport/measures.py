"""What is measured of each transport, and against what."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_transport.pair import Case, Pair, contiguous, pair, scattered
from benchmarks.bench_transport.raw.base import GRANULE
from benchmarks.common.rows import Row, at_least, at_most

TRANSPORTS = ("shm", "nixl", "ucx", "shared_storage")
LIBRARY = {"shm": "memcpy", "nixl": "nixl", "ucx": "ucxx", "shared_storage": "plain files"}
BANDWIDTH_BAR, LATENCY_BAR, SCATTERED_BAR = 0.85, 2.0, 0.8
SCATTERED = 512
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Size:
    """`nbytes` of the large transfer and of the regions. In each of `rounds` the contestants take
    turns, with `large` or `small` transfers each."""

    nbytes: int = 64 << 20
    rounds: int = 5
    large: int = 4
    small: int = 200

    @property
    def blocks(self) -> int:
        return self.nbytes // GRANULE


QUICK = Size(rounds=2, large=3, small=100)
Contestants = dict[str, Callable[[], list[float]]]


def alternate(contestants: Contestants, rounds: int) -> dict[str, float]:
    """Seconds of each; they take turns, so that a noisy moment meets all of them, and the first
    quartile counts, as other load only ever adds time."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            times[name] += run()
    return {name: quartile(found) for name, found in times.items()}


def quartile(values: Sequence[float]) -> float:
    """The first; of a single value, that value."""
    return statistics.quantiles(values, method="inclusive")[0] if len(values) > 1 else values[0]


def bandwidth(name: str, nbytes: int, ours: float, peer: float, bar: float | None) -> Row:
    """In GB/s, of seconds."""
    return at_least(f"{name}, GB/s", nbytes / ours / 1e9, nbytes / peer / 1e9, bar)


def latency(name: str, ours: float, peer: float, bar: float | None) -> Row:
    """In µs, of seconds."""
    return at_most(f"{name}, µs", ours * 1e6, peer * 1e6, bar)


def memory_rows(name: str, made: Pair, size: Size) -> Iterator[Row]:
    """A transport that reads a peer's memory, beside its library."""
    large, small = contiguous("large", size.blocks), contiguous("small", 1)
    mixed = scattered("scattered", min(SCATTERED, size.blocks // 2), size.blocks)
    beside = f"{name} beside {LIBRARY[name]}"
    found = _measure(made, large, size.rounds, size.large, whole=True)
    found |= alternate(
        {
            "copy": lambda: made.copy(size.nbytes, size.large),
            "put": lambda: made.get(size.nbytes, size.large)[0],
            "get": lambda: made.get(size.nbytes, size.large)[1],
            "again": lambda: made.read("raw", large.ranges(whole=True), size.large),
        },
        size.rounds,
    )
    label = f"{size.nbytes >> 20} MiB"
    yield bandwidth(
        f"{beside}: read {label}", size.nbytes, found["ours"], found["raw"], BANDWIDTH_BAR
    )
    yield bandwidth(
        f"{beside}: KV publish → fetch {label}", size.nbytes, found["kv"], found["raw"],
        BANDWIDTH_BAR,
    )  # fmt: skip
    yield bandwidth(
        f"{beside}: EC get {label}", size.nbytes, found["get"], found["again"], BANDWIDTH_BAR
    )
    yield bandwidth(
        f"{name} beside memcpy: EC put {label}", size.nbytes, found["put"], found["copy"],
        BANDWIDTH_BAR,
    )  # fmt: skip
    found = _measure(made, mixed, size.rounds, 2 * size.large, whole=False)
    label = f"{len(mixed.blocks)} scattered blocks of 64 KiB"
    for what, key, bar in (("read", "ours", SCATTERED_BAR), ("KV publish → fetch", "kv", None)):
        yield bandwidth(f"{beside}: {what} {label}", mixed.nbytes, found[key], found["raw"], bar)
    found = _measure(made, small, size.rounds, size.small, whole=True)
    found |= alternate({"get": lambda: made.get(GRANULE, size.small)[1]}, size.rounds)
    yield latency(f"{beside}: read 64 KiB", found["ours"], found["raw"], LATENCY_BAR)
    yield latency(f"{beside}: KV 64 KiB with its handshake", found["kv"], found["raw"], None)
    yield latency(f"{beside}: EC 64 KiB with its handshake", found["get"], found["raw"], None)


def _measure(
    made: Pair, case: Case, rounds: int, count: int, *, whole: bool
) -> dict[str, float]:  # fmt: skip
    """Seconds of the library, of our transport, and of KV published and fetched."""
    ranges = case.ranges(whole=whole)
    return alternate(
        {
            "raw": lambda: made.read("raw", ranges, count),
            "ours": lambda: made.read("ours", ranges, count),
            "kv": lambda: made.fetch(case, max(3, count // 8)),
        },
        rounds,
    )


def file_rows(made: Pair, size: Size) -> Iterator[Row]:
    """Shared storage beside files written and read without anything else, and with the checksum
    that ours verify."""
    for case, what in (
        (contiguous("large", size.blocks), f"{size.blocks} files of 64 KiB"),
        (contiguous("small", 1), "one file of 64 KiB"),
    ):
        ranges = case.ranges(whole=False)
        found = alternate(
            {
                "write": lambda r=ranges: made.write(r, size.large),  # type: ignore[misc]
                "read": lambda r=ranges: made.read("raw", r, size.large),  # type: ignore[misc]
                "sum": lambda c=case: made.checksum(c.nbytes, size.large),  # type: ignore[misc]
                "kv": lambda c=case: made.fetch(c, size.large),  # type: ignore[misc]
            },
            size.rounds,
        )
        yield from _beside_files(f"KV publish → fetch, {what}", case.nbytes, found, "kv")
    whole = contiguous("large", size.blocks).ranges(whole=True)
    found = alternate(
        {
            "write": lambda: made.write(whole, size.large),
            "read": lambda: made.read("raw", whole, size.large),
            "sum": lambda: made.checksum(size.nbytes, size.large),
            "ec": lambda: _sums(*made.get(size.nbytes, size.large)),
        },
        size.rounds,
    )
    yield from _beside_files(
        f"EC put → get, one file of {size.nbytes >> 20} MiB", size.nbytes, found, "ec"
    )


def _sums(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(first, second, strict=True)]


def _beside_files(what: str, nbytes: int, found: dict[str, float], key: str) -> Iterator[Row]:
    plain = found["write"] + found["read"]
    name = f"shared_storage beside plain files: {what}"
    yield bandwidth(name, nbytes, found[key], plain, None)
    yield bandwidth(f"{name}, both with BLAKE3", nbytes, found[key], plain + 2 * found["sum"], None)


def rows(size: Size, cores: tuple[int, int], transports: Sequence[str]) -> Iterator[Row]:
    """Producer and consumer of each transport on two cores. Files lie in the temporary folder."""
    for name in transports:
        parent = _SHARED_MEMORY if name == "shm" and _SHARED_MEMORY.is_dir() else None
        with (
            tempfile.TemporaryDirectory(prefix="triptych-bench-", dir=parent) as folder,
            pair(name, Path(folder), size.nbytes, cores) as made,
        ):
            found = (
                file_rows(made, size) if name == "shared_storage" else memory_rows(name, made, size)
            )
            yield from found
