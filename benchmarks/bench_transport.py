"""Our connectors beside the libraries they stand on, and what their overlap is worth in a request.

    python -m benchmarks.bench_transport [--quick] [--json FILE] [--only transports|overlap]

Transports: two processes, each on a core of its own, move bytes by NIXL, ucxx, memcpy and files
alone, and by our transport, KV connector (publish → fetch) and EC connector (put → get). A read is
the transport polled without pause, as its library is; KV and EC are the whole way, driven as an
engine drives it: side channel, leases, confirmation. `ratio` of bandwidths is ours / peer, of times
ours / peer. Contestants take turns; a figure is the first quartile, as other load only adds time.

Overlap: see `bench_transport_overlap`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import bench_transport_overlap as overlap
from benchmarks import bench_transport_rows as transports
from benchmarks.bench_transport_pair import SEED
from benchmarks.bench_transport_rows import Row

_PACKAGES = {"nixl": "nixl", "ucx": "ucxx"}
_VERSIONS = ("torch", "transformers", "numpy", "nixl", "ucxx-cu12", "pyzmq", "blake3")
_TOKENS, _QUICK_TOKENS = 4096, 2048


def installed() -> list[str]:
    """The transports whose library is here."""
    return [
        name
        for name in transports.TRANSPORTS
        if name not in _PACKAGES or importlib.util.find_spec(_PACKAGES[name]) is not None
    ]


def measure(args: argparse.Namespace, cores: tuple[int, int]) -> Iterator[Row]:
    """Rows as they are found."""
    names = args.transports.split(",") if args.transports else installed()
    if args.only in ("", "transports"):
        size = transports.QUICK if args.quick else transports.Size()
        yield from transports.rows(size, cores, names)
    if args.only in ("", "overlap"):
        tokens, rounds = (_QUICK_TOKENS, 1) if args.quick else (_TOKENS, 4)
        kinds = [name for name in ("shm", "nixl") if name in names]
        kinds = kinds[:1] if args.quick else kinds
        yield from overlap.rows(args.model, cores, kinds, tokens, rounds)


def hardware() -> str:
    """Where and with what the figures were made."""
    named = []
    for package in _VERSIONS:
        try:
            named.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            named.append(f"no {package}")
    load = os.getloadavg()[0]
    return (
        f"{_processor()}, {os.cpu_count()} cores, load {load:.1f} at the start, "
        f"Python {platform.python_version()}, {', '.join(named)}, seed {SEED}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((x.partition(": ")[2] for x in lines if x.startswith("model name")), "")


def cells(row: Row) -> list[str]:
    """A row as the table shows it."""
    peer = "" if row.peer is None else f"{row.peer:.2f}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    verdict = "" if row.holds is None else f"{row.bar}: {'holds' if row.holds else 'MISSED'}"
    return [row.name, f"{row.ours:.2f}", peer, ratio, verdict]


def markdown(rows: Sequence[Row], about: str) -> str:
    """The table as a file of the documentation."""
    lines = [about, "", "| | ours | peer | ratio | bar |", "|---|---:|---:|---:|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows), ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row misses its bar."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.bench_transport",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--only", choices=("", "transports", "overlap"), default="")
    parser.add_argument("--transports", default="", help="comma-separated, all that are installed")
    parser.add_argument("--cores", default="", help="producer's and consumer's, as in 0,1")
    parser.add_argument("--model", type=Path, default=Path("models/demo"),
                        help="whose family and tokenizer the overlap's model has")  # fmt: skip
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends what we started
    about, rows = hardware(), []
    print(about)
    print(f"{'row':82} {'ours':>10} {'peer':>10} {'ratio':>7}  bar")
    for row in measure(args, _cores(args.cores)):
        rows.append(row)
        name, ours, peer, ratio, verdict = cells(row)
        print(f"{name:82} {ours:>10} {peer:>10} {ratio:>7}  {verdict}", flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if args.markdown:
        args.markdown.write_text(markdown(rows, about))
    return 0 if all(row.holds is not False for row in rows) else 1


def _cores(given: str) -> tuple[int, int]:
    if given:
        first, _, second = given.partition(",")
        return int(first), int(second or first)
    able = sorted(os.sched_getaffinity(0))
    return able[0], able[-1]


if __name__ == "__main__":
    sys.exit(main())
