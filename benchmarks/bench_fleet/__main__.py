"""Goodput of one fleet behind four proxies, offered from half to twice of its capacity.

    python -m benchmarks.bench_fleet [--quick] [--json FILE] [--peer PROGRAM] [--rates 4,6,...]

Mock workers that speak vLLM's protocol (three encoders, four prefill, four decode, on a timing
model), one trace for all: three pictures a request out of 600 (Zipf 1.1), shared system prompts,
Poisson arrivals, however many wait. Contenders: round robin as in vLLM's disaggregated example,
vllm-router (P+D; as many workers in all, whose prefill workers encode), our proxy alone, our proxy
and master. A request is good if its first token comes within a second and the others within 30 ms
each. It is fair since workers, requests and their times are the same for all, each contender begins
with empty caches, has a minute at a low rate to fill them, and then all rates one after the other,
the caches kept, and each proxy runs with what its documentation says. `--cache-pictures` is how
many of the 600 an encoder has room for: it decides what choosing encoders by content is worth.
A whole run takes nine minutes a contender, half an hour in all. `--quick` takes a minute and shows
that the benchmark works; it offers each rate for seconds, and no bar is judged by its figures.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.bench_fleet import load, processes
from benchmarks.bench_fleet.processes import Fleet
from benchmarks.bench_fleet.report import (
    ROUND_ROBIN,
    ROUTER,
    WITH_MASTER,
    Measured,
    measured,
    rows,
    table,
)
from benchmarks.bench_fleet.trace import Drawing
from benchmarks.common.rows import arguments, finish, hardware, head, line

SEED = 7
WORKERS = (3, 4, 4)
OUTPUT_TOKENS, QUICK_TOKENS = 100, 30
SECONDS, QUICK_SECONDS = 30.0, 3.0
RATES, QUICK_RATES = "3,4,5,6,8,10,13,16,20,28,40", "4,10"
WARM_RATE, WARM_SECONDS, QUICK_WARM_SECONDS = 4.0, 75.0, 2.0
CACHE_PICTURES = 100
UNCOUNTED = 0.1  # of a rate's time, while it settles
_DRAIN_S = 10.0  # for those under way once the last has been sent
PROXY_ALONE = "proxy alone"


@dataclass(frozen=True)
class Times:
    """Seconds of each rate, and of the time before the first in which caches fill."""

    rate_s: float
    warm_s: float


Contender = Callable[[Fleet], AbstractContextManager[str]]


def main(argv: Sequence[str] | None = None) -> int:
    given = _parse(argv)
    rates = [float(rate) for rate in given.rates.split(",")]
    print(hardware(["aiohttp", "uvloop"], SEED))
    curves: dict[str, list[Measured]] = {}
    drawing = Drawing(SEED, QUICK_TOKENS if given.quick else OUTPUT_TOKENS)
    times = Times(given.seconds, QUICK_WARM_SECONDS if given.quick else WARM_SECONDS)
    with processes.fleet(*WORKERS, given.cache_pictures) as fleet:
        for name, contender in _contenders(given.only):
            curves[name] = list(_curve(name, contender, fleet, drawing, rates, times))
    if given.peer:
        encode, prefill, decode = WORKERS
        with _encoding_fleet(encode + prefill, decode, given.cache_pictures) as fleet:
            contender = _router(given.peer)
            curves[ROUTER] = list(_curve(ROUTER, contender, fleet, drawing, rates, times))
    print("\n".join(["", *table(curves), ""]))
    found = rows(curves, judged=not given.quick) if WITH_MASTER in curves else []
    print("\n".join([head(), *map(line, found)]))
    return finish(found, given.json)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("bench_fleet", __doc__)
    parser.add_argument(
        "--peer", type=Path, help="vllm-router's program; without it, no row has that peer"
    )
    parser.add_argument("--rates", default="", help="requests/s to offer, comma-separated")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="seconds for which each rate is offered"
    )
    parser.add_argument("--cache-pictures", type=int, default=CACHE_PICTURES,
                        help="pictures that an encoder's cache has room for")  # fmt: skip
    parser.add_argument("--only", default="", help="run only contenders with this in their name")
    given = parser.parse_args(argv)
    given.rates = given.rates or (QUICK_RATES if given.quick else RATES)
    given.seconds = given.seconds or (QUICK_SECONDS if given.quick else SECONDS)
    return given


def _contenders(only: str) -> list[tuple[str, Contender]]:
    known: list[tuple[str, Contender]] = [
        (ROUND_ROBIN, processes.round_robin),
        (PROXY_ALONE, processes.ours),
        (WITH_MASTER, processes.ours_with_master),
    ]
    return [(name, contender) for name, contender in known if only in name]


def _router(binary: Path) -> Contender:
    return lambda fleet: processes.router(binary, fleet)


@contextlib.contextmanager
def _encoding_fleet(prefill: int, decode: int, cache_pictures: int) -> Iterator[Fleet]:
    """As many workers, for a router that never encodes: its prefill workers do, as they get the
    pictures themselves."""
    first = processes.workers("prefill", prefill, cache_pictures)
    last = processes.workers("decode", decode, cache_pictures)
    with first as prefills, last as decodes:
        yield Fleet([], prefills, decodes)


def _curve(
    name: str, contender: Contender, fleet: Fleet, drawing: Drawing, rates: Sequence[float],
    times: Times,
) -> Iterator[Measured]:  # fmt: skip
    """Each rate on one contender, after its caches have filled."""
    fleet.reset()
    drain_s = min(_DRAIN_S, times.rate_s)
    with contender(fleet) as url:
        uvloop.run(load.run(url, drawing.trace(WARM_RATE, times.warm_s), drain_s))
        for rate in rates:
            before, begun = fleet.counters(), time.monotonic()
            answers = uvloop.run(load.run(url, drawing.trace(rate, times.rate_s), drain_s))
            after = fleet.counters()
            used = {key: after[key] - before[key] for key in after}
            found = measured(rate, answers, UNCOUNTED * times.rate_s, times.rate_s, used)
            took = time.monotonic() - begun
            print(
                f"{name} at {rate:g}/s: {found.goodput:.2f} good/s, {took:.0f} s", file=sys.stderr
            )
            yield found


if __name__ == "__main__":
    sys.exit(main())
