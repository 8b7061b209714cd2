"""What it costs our proxy to be watched: log lines, sampled traces, scraped metrics.

One proxy does nothing of it, each other does one thing more, the last does all. They stand before
the same fake workers on the same core, two processes of each (one if quick), and serve the same
requests/s, half of what the first one can: under full load a slower one finds its workers asleep
more often, and pays for waking them. They take turns of a second. Noise only adds to CPU time, so a
process counts by the median of its quickest third of turns, and a row by the mean of its processes.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.bench_proxy import servers
from benchmarks.common.processes import call
from benchmarks.common.rows import Row

MOST = 1.05
SCRAPE_S = 1.0  # Prometheus itself asks each 15 s
_SHARE = "0.01"


class Turn(Protocol):
    """What one turn takes: CPU µs per request, and requests/s."""

    @property
    def cpu_us(self) -> float: ...

    @property
    def rate(self) -> float: ...


class TakeTurn(Protocol):
    def __call__(self, server: servers.Server, rate: float) -> Turn:
        """One turn at so many requests/s, 0 for as many as are answered."""


@dataclass
class _Watched:
    """`micros`: CPU µs per request of each turn, by process."""

    name: str
    processes: Sequence[servers.Server]
    scraped: bool = False
    micros: list[list[float]] = field(default_factory=list)

    def take_turn(self, load: TakeTurn, rate: float) -> None:
        self.micros = self.micros or [[] for _ in self.processes]
        for process, micros in zip(self.processes, self.micros, strict=True):
            with _scraping(process) if self.scraped else contextlib.nullcontext():
                micros.append(load(process, rate).cpu_us)

    def cost(self) -> float:
        """CPU µs per request."""
        return statistics.mean(_quick(micros) for micros in self.micros)


def rows(
    name: str, fleet: servers.Workers, core: int, folder: Path, processes: int, turns: int,
    load: TakeTurn,
) -> list[Row]:  # fmt: skip
    """So many `processes` of each kind. Spans go to files in `folder`."""
    with contextlib.ExitStack() as stack:

        def proxies(*flags: str) -> list[servers.Server]:
            return [
                stack.enter_context(servers.ours(fleet, core, *flags)) for _ in range(processes)
            ]

        def traced(file: str) -> tuple[str, ...]:
            return "--trace-to", str(folder / file), "--trace-sample", _SHARE

        plain = _Watched("", proxies())
        watched = [
            _Watched("a log line and Server-Timing for each request", proxies("--log-requests")),
            _Watched("1 % of the requests traced", proxies(*traced("traced"))),
            _Watched("metrics scraped each second", proxies(), scraped=True),
            _Watched("all of these", proxies("--log-requests", *traced("all")), scraped=True),
        ]
        rate = load(plain.processes[0], 0.0).rate / 2
        for _ in range(turns):
            for one in (plain, *watched):
                one.take_turn(load, rate)
        return [
            _row(f"{name}: CPU µs with {one.name}", one.cost(), plain.cost()) for one in watched
        ]


def _quick(micros: Sequence[float]) -> float:
    """The median of the quickest third."""
    return statistics.median(sorted(micros)[: max(1, len(micros) // 3)])


def _row(name: str, watched: float, plain: float) -> Row:
    ratio = watched / plain
    return Row(name, watched, plain, ratio, f"ratio <= {MOST:g}", ratio <= MOST)


@contextlib.contextmanager
def _scraping(server: servers.Server) -> Iterator[None]:
    """Its /metrics is asked for as long as the context lasts, at once and then each second."""
    over = threading.Event()

    def scrape() -> None:
        while True:
            call("GET", server.url, "/metrics")
            if over.wait(SCRAPE_S):
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
