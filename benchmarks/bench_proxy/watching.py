"""What it costs our proxy to be watched: log lines, sampled traces, scraped metrics.

One proxy does nothing of it, each other does one thing more, the last does all. They stand before
the same fake workers on the same core and take turns of a part of a second, so that a noisy moment
meets all; a row's ratio is the median over the turns of CPU time watched / not watched.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench_proxy import servers
from benchmarks.common.processes import call
from benchmarks.common.rows import Row

MOST = 1.05
SCRAPE_S = 1.0  # Prometheus itself asks each 15 s
_SHARE = "0.01"


@dataclass
class _Watched:
    """`micros`: CPU µs per request of each turn."""

    name: str
    server: servers.Server
    scraped: bool = False
    micros: list[float] = field(default_factory=list)


def rows(
    name: str, fleet: servers.Workers, core: int, folder: Path, turns: int,
    micros: Callable[[servers.Server], float],
) -> list[Row]:  # fmt: skip
    """`micros` loads a server for one turn: its CPU µs per request. Spans go to files in
    `folder`."""
    with contextlib.ExitStack() as stack:

        def proxy(*flags: str) -> servers.Server:
            return stack.enter_context(servers.ours(fleet, core, *flags))

        def traced(file: str) -> tuple[str, ...]:
            return "--trace-to", str(folder / file), "--trace-sample", _SHARE

        plain = _Watched("", proxy())
        watched = [
            _Watched("a log line and Server-Timing for each request", proxy("--log-requests")),
            _Watched("1 % of the requests traced", proxy(*traced("traced"))),
            _Watched("metrics scraped each second", proxy(), scraped=True),
            _Watched("all of these", proxy("--log-requests", *traced("all")), scraped=True),
        ]
        for _ in range(turns):
            for one in (plain, *watched):
                with _scraping(one.server) if one.scraped else contextlib.nullcontext():
                    one.micros.append(micros(one.server))
    return [_row(f"{name}: CPU µs with {one.name}", one.micros, plain.micros) for one in watched]


def _row(name: str, watched: list[float], plain: list[float]) -> Row:
    ratio = statistics.median(a / b for a, b in zip(watched, plain, strict=True))
    ours, peer = statistics.median(watched), statistics.median(plain)
    return Row(name, ours, peer, ratio, f"ratio <= {MOST:g}", ratio <= MOST)


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
