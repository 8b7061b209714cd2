"""What every benchmark here has: rows beside a peer, `--quick`, `--json`, a table, a verdict."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

WIDTH = 82


@dataclass(frozen=True)
class Row:
    """One line of the table; None where there is nothing to compare with, or no bar."""

    name: str  # what was measured, with its unit
    ours: float  # figure of ours
    peer: float | None = None  # figure of the peer
    ratio: float | None = None  # ours / peer
    bar: str = ""  # what the row has to keep, as text
    holds: bool | None = None  # whether it keeps it


def at_least(name: str, ours: float, peer: float, bar: float | None = None) -> Row:
    """More is better: it holds if ours / peer reaches `bar`."""
    ratio = _ratio(ours, peer)
    if bar is None:
        return Row(name, ours, peer, ratio)
    return Row(name, ours, peer, ratio, f"ratio >= {bar:g}", ours >= peer * bar)


def at_most(name: str, ours: float, peer: float, bar: float | None = None) -> Row:
    """Less is better: it holds while ours / peer stays within `bar`; of a peer of 0, none."""
    ratio = _ratio(ours, peer)
    if bar is None:
        return Row(name, ours, peer, ratio)
    said = f"ratio <= {bar:g}" if peer else "none"
    return Row(name, ours, peer, ratio, said, ours <= peer * bar)


def _ratio(ours: float, peer: float) -> float | None:
    return ours / peer if peer else None


def arguments(name: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks.NAME` with what all have; `about` is the module's doc.

    From here on SIGTERM leaves every `with`, as Ctrl-C does: what was started is ended.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog=f"benchmarks.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a short run, of about a minute")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    return parser


def two_cores(given: str) -> tuple[int, int]:
    """The cores of `--cores`, as in 0,1: by default the first and the last that we may use."""
    if given:
        first, _, second = given.partition(",")
        return int(first), int(second or first)
    able = sorted(os.sched_getaffinity(0))
    return able[0], able[-1]


def hardware(packages: Sequence[str], seed: int) -> str:
    """Where and with what the figures were made."""
    named = []
    for package in packages:
        try:
            named.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            named.append(f"no {package}")
    load = os.getloadavg()[0]
    return (
        f"{_processor()}, {os.cpu_count()} cores, load {load:.1f} at the start, "
        f"Python {platform.python_version()}, {', '.join(named)}, seed {seed}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((x.partition(": ")[2] for x in lines if x.startswith("model name")), "")


def cells(row: Row) -> list[str]:
    """A row as tables show it."""
    peer = "" if row.peer is None else f"{row.peer:,.2f}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    verdict = "" if row.holds is None else f"{row.bar}: {'holds' if row.holds else 'MISSED'}"
    return [row.name, f"{row.ours:,.2f}", peer, ratio, verdict]


def head() -> str:
    """The first line of the table."""
    return f"{'row':{WIDTH}} {'ours':>14} {'peer':>14} {'ratio':>7}  bar"


def line(row: Row) -> str:
    """A line of the table."""
    name, ours, peer, ratio, verdict = cells(row)
    return f"{name:{WIDTH}} {ours:>14} {peer:>14} {ratio:>7}  {verdict}".rstrip()


def markdown(rows: Sequence[Row], about: str) -> str:
    """The table as a file of the documentation."""
    lines = [about, "", "| | ours | peer | ratio | bar |", "|---|---:|---:|---:|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows), ""])


def finish(rows: Sequence[Row], file: Path | None) -> int:
    """Writes the rows to `file`; the exit status, 1 if a row misses its bar."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if all(row.holds is not False for row in rows) else 1
