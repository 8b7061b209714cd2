"""Our proxy's `openai` dialect beside vllm-router: same fake workers, same core, one process each.

    python -m benchmarks.bench_proxy [--quick] [--json FILE] [--peer PROGRAM]

Ours runs E+P+D with retries, breaker, metrics and cancellation on; the peer runs P+D, since it
never encodes. The proxies share one core, load generator and workers another. `ratio` is how many
times better ours is: more requests per second, less CPU or memory. A row with a bar holds if the
ratio reaches it; bytes sent upstream hold if ours stay under theirs. No picture is sent twice.
Where tokens come slowly the workers bound the requests/s: CPU is what counts there. Rows "with a
master" are of a proxy whose every request is admitted and placed by our master, by keys over
message parts, as it has no model; the master runs on the load generator's core, its CPU is a row.
In the rows "CPU µs with" the peer is our own proxy that writes no log and no trace.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from benchmarks.bench_proxy import load, servers, tokens, watching
from benchmarks.bench_proxy.scenarios import SEED, Scenario, scenarios
from benchmarks.bench_proxy.upstream import SLOW_EVENTS
from benchmarks.common.rows import Row, arguments, finish, hardware, head, line, two_cores

RATE_BAR, BYTES_BAR = 1.3, 1.1


@dataclass(frozen=True)
class Measured:
    """Of one server and scenario: requests/s, CPU µs per request (per event where `slow`), seconds
    of the median and the 99th percentile request (of gaps where `slow`), bytes sent to workers per
    byte of the client's."""

    rate: float
    cpu_us: float
    p50_s: float
    p99_s: float
    bytes_ratio: float


def measure(
    scenario: Scenario, targets: Sequence[servers.Server], fleet: servers.Workers,
    seconds: float, rounds: int,
) -> list[Row]:  # fmt: skip
    """Rows of one scenario; the servers take turns, so that a noisy minute meets both."""
    direct = _latency(scenario, fleet.decode, seconds)
    alone = [_latency(scenario, server.port, seconds) for server in targets]
    loads: list[list[Measured]] = [[] for _ in targets]
    for _ in range(rounds):
        for measured, server in zip(loads, targets, strict=True):
            measured.append(_under_load(scenario, server, fleet, seconds))
    results = [
        Measured(
            statistics.median(m.rate for m in measured),
            statistics.median(m.cpu_us for m in measured),
            quick[0] - direct[0],
            quick[1] - direct[1],
            measured[-1].bytes_ratio,
        )
        for measured, quick in zip(loads, alone, strict=True)
    ]
    return _rows(scenario, results)


def _latency(scenario: Scenario, port: int, seconds: float) -> tuple[float, float]:
    """(p50, p99) of one client alone."""
    connections = scenario.connections if scenario.slow else 1
    done = uvloop.run(load.run(port, scenario.body, connections, seconds / 2))
    values = done.gaps if scenario.slow else done.latencies
    return load.quantile(values, 0.5), load.quantile(values, 0.99)


def _under_load(
    scenario: Scenario, server: servers.Server, fleet: servers.Workers, seconds: float,
    rate: float = 0.0,
) -> Measured:  # fmt: skip
    before, sent = server.cpu_s(), fleet.received_bytes()
    done = uvloop.run(load.run(server.port, scenario.body, scenario.connections, seconds, rate))
    if done.failed:
        raise RuntimeError(f"{server.name}: {done.failed} requests failed in '{scenario.name}'")
    cpu = server.cpu_s() - before
    units = done.requests * (SLOW_EVENTS + 1 if scenario.slow else 1)
    upstream = fleet.received_bytes() - sent
    return Measured(
        done.rate, cpu / units * 1e6, 0, 0, upstream / (done.requests * len(scenario.body))
    )


def _rows(scenario: Scenario, results: Sequence[Measured]) -> list[Row]:
    ours, peer = results[0], results[1] if len(results) > 1 else None
    unit = "event" if scenario.slow else "request"
    bar = None if scenario.slow or scenario.copies > 1 else RATE_BAR

    def row(name: str, field: str, bar: float | None, better: int, scale: float = 1.0) -> Row:
        mine = getattr(ours, field) * scale
        theirs = None if peer is None else getattr(peer, field) * scale
        return _row(f"{scenario.name}: {name}", mine, theirs, bar, better)

    rows = [
        row("requests/s", "rate", bar, 1),
        row(f"CPU µs per {unit}", "cpu_us", bar, -1),
        row("added p50 ms", "p50_s", None, -1, 1e3),
        row("added p99 ms", "p99_s", None, -1, 1e3),
    ]
    if "picture" in scenario.name:
        found = row("bytes upstream per client byte", "bytes_ratio", None, -1)
        most = scenario.copies * BYTES_BAR
        rows.append(replace(found, bar=f"ours <= {most:.1f}", holds=ours.bytes_ratio <= most))
    return rows


def _row(name: str, ours: float, peer: float | None, bar: float | None, better: int) -> Row:
    if peer is None or ours <= 0 or peer <= 0:
        return Row(name, ours, peer, None, "", None)
    ratio = ours / peer if better > 0 else peer / ours
    holds = None if bar is None else ratio >= bar
    return Row(name, ours, peer, ratio, "" if bar is None else f"ratio >= {bar}", holds)


def master_rows(
    fleet: servers.Workers, peers: Sequence[servers.Server], cores: tuple[int, int],
    seconds: float, rounds: int,
) -> list[Row]:  # fmt: skip
    """What placing by a master takes: the proxy's rows, and the master's CPU."""
    rows: list[Row] = []
    proxy_core, load_core = cores
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(servers.master(fleet, load_core))
        flags = ("--master-url", master.url)
        proxy = stack.enter_context(servers.ours(fleet, proxy_core, *flags))
        for scenario in scenarios():
            if scenario.slow or scenario.copies > 1:
                continue
            named = replace(scenario, name=f"{scenario.name}, with a master")
            print(named.name, file=sys.stderr)
            before, placed = master.cpu_s(), proxy.placed()
            found = measure(named, [proxy, *peers], fleet, seconds, rounds)
            micros = (master.cpu_s() - before) / max(1, proxy.placed() - placed) * 1e6
            rows += [replace(row, bar="", holds=None) for row in found]
            rows.append(_row(f"{named.name}: master's CPU µs per request", micros, None, None, -1))
    return rows


def watched_rows(fleet: servers.Workers, core: int, quick: bool) -> list[Row]:
    """What log lines, traces and scraped metrics take of the CPU time of relayed requests: of a
    text, the least that there is, and of one with a picture."""
    rows: list[Row] = []
    for scenario in scenarios():
        if scenario.name not in ("text JSON", "one picture"):
            continue
        print(f"{scenario.name}, watched", file=sys.stderr)

        def under_load(server: servers.Server, rate: float, asked: Scenario = scenario) -> Measured:
            return _under_load(asked, server, fleet, 0.4 if quick else 1.0, rate)

        with tempfile.TemporaryDirectory() as folder:
            processes, turns = (1, 1) if quick else (2, 15)  # two of the same code may differ
            rows += watching.rows(
                scenario.name, fleet, core, Path(folder), processes, turns, under_load
            )
    return rows


def token_rows(model: Path, seconds: float) -> list[Row]:
    """The `tokens` dialect, beside two workers that render the same request."""
    cost = tokens.measure(model, seconds)
    rows = [Row(f"tokens: {s.name}, CPU µs", s.micros, None, None, "", None) for s in cost.steps]
    ratio = cost.twice / cost.once
    name = f"tokens: once here against twice at workers ({tokens.STEPS} tokens out), CPU µs"
    return [*rows, Row(name, cost.once, cost.twice, ratio, "ratio > 1", ratio > 1)]


def run(args: argparse.Namespace) -> list[Row]:
    proxy_core, load_core = two_cores(args.cores)
    os.sched_setaffinity(0, {load_core})
    binary = servers.peer_binary(args.peer, args.peer_venv)
    seconds, rounds = (0.5, 1) if args.quick else (4.0, 5)
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(servers.workers(load_core))
        targets = [stack.enter_context(servers.ours(fleet, proxy_core))]
        if binary is not None:
            targets.append(stack.enter_context(servers.peer(binary, fleet, proxy_core)))
        for scenario in scenarios():
            print(scenario.name, file=sys.stderr)
            rows += measure(scenario, targets, fleet, seconds, rounds)
        rows += master_rows(fleet, targets[1:], (proxy_core, load_core), seconds, rounds)
        rows += watched_rows(fleet, proxy_core, args.quick)
        peaks = [server.peak_bytes() / 1e6 for server in targets]
        rows.append(_row("peak memory MB", peaks[0], peaks[1] if binary else None, None, -1))
    if args.model.is_dir():
        rows += token_rows(args.model, seconds)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row misses its bar."""
    parser = arguments("bench_proxy", __doc__)
    parser.add_argument("--peer", default="", help="vllm-router's program, or none")
    parser.add_argument("--peer-venv", type=Path, default=Path(".venv-vllm-router"),
                        help="where it is installed if no program is given")  # fmt: skip
    parser.add_argument("--cores", default="", help="the proxies' and the others', as in 0,1")
    parser.add_argument("--model", type=Path, default=Path("models/demo"),
                        help="model of the tokens rows")  # fmt: skip
    args = parser.parse_args(argv)
    about = hardware(("uvloop", "aiohttp"), SEED)
    rows = run(args)
    print("\n".join([f"{about}, {servers.PEER}", head(), *map(line, rows)]))
    return finish(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
