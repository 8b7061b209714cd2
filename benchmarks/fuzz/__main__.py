"""Thousands of mutated requests on every route of proxy, master and workers, and over gRPC: none is
answered with a 5xx that is not meant, nothing dies, nothing grows, and ordinary requests are
answered as before.

    python -m benchmarks.fuzz [--quick] [--json FILE] [--requests N] [--seed N] [--only NUMBER]

A master, one worker of each role, a proxy of each dialect and one before the master, on one
machine. Each request is a valid one of its route with values, bytes, headers or framing changed; it
is drawn from the seed and its own number, and `--only` sends one of them again. There is no peer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.rows import Row, arguments, at_least, at_most, finish, hardware, head, line
from benchmarks.fuzz import over_grpc
from benchmarks.fuzz.aftermath import Size, answers, forget_strangers, settled, size
from benchmarks.fuzz.cases import Target, case
from benchmarks.fuzz.client import Findings, attack
from benchmarks.fuzz.over_grpc import Door
from benchmarks.fuzz.servers import attacked, doors, targets, traces
from benchmarks.soak.stack import Service

REQUESTS, QUICK = 12_000, 600
_WARM = 0.4  # of the requests: caches fill meanwhile
_MEMORY_BAR, _MEMORY_SLACK, _FILES_SLACK, _THREADS_SLACK, _TASKS_SLACK = 1.1, 48 << 20, 24, 8, 4
_SHOWN = 40
_FOR_EACH = 10  # requests over HTTP one over gRPC


def _attack(aim: Sequence[Target], opened: Sequence[Door], seed: int, numbers: range) -> Findings:
    """Over HTTP the requests of these numbers, then over gRPC one for ten of them."""
    found = asyncio.run(attack(case(seed, number, aim) for number in numbers))
    also = asyncio.run(
        over_grpc.attack(over_grpc.call(seed, number, opened) for number in numbers[::_FOR_EACH])
    )
    return Findings(
        found.statuses + also.statuses, [*found.defects, *also.defects], found.sent + also.sent
    )


def run(services: Sequence[Service], seed: int, count: int) -> list[Row]:
    """Attack in two parts, and compare what there is after each."""
    workers = [one for one in services if "proxy" not in one.module and one.name != "master"]
    proxies = [one for one in services if one.module == "proxy"]
    aim, before = targets(services), answers(proxies)
    began, part = time.monotonic(), int(count * _WARM)
    opened = doors(services)
    first = _attack(aim, opened, seed, range(part))
    problems = _calmed(services, workers)
    sizes = [size(one) for one in services]
    second = _attack(aim, opened, seed, range(part, count))
    problems += _calmed(services, workers)
    after = [size(one) for one in services]
    defects = [*first.defects, *second.defects]
    alive = [one for one in services if one.process.poll() is None]
    wrong = [now for now, was in zip(answers(proxies), before, strict=True) if now != was]
    statuses = first.statuses + second.statuses
    print(f"{time.monotonic() - began:.0f} s, answers by status: {dict(sorted(statuses.items()))}")
    for one in (*defects[:_SHOWN], *traces(services)[:_SHOWN], *problems, *map(str, wrong)):
        print(one)
    return [
        at_least("requests sent, on all routes", first.sent + second.sent, count, 1),
        at_most(
            "answers 5xx but 503 and 504 (gRPC: INTERNAL, UNKNOWN), without an end or a form",
            len(defects),
            0,
            1,
        ),
        at_most("uncaught exceptions in logs", len(traces(services)), 0, 1),
        at_most("processes that ended", len(services) - len(alive), 0, 1),
        at_most("problems of the workers' books", len(problems), 0, 1),
        at_most("ordinary requests answered otherwise afterwards", len(wrong), 0, 1),
        *_growth(sizes, after),
    ]


def _calmed(services: Sequence[Service], workers: Sequence[Service]) -> list[str]:
    forget_strangers([one for one in services if one not in workers], workers)
    return settled(workers)


def _growth(before: Sequence[Size], after: Sequence[Size]) -> list[Row]:
    grown = [
        now.memory > was.memory * _MEMORY_BAR + _MEMORY_SLACK
        or now.files > was.files + _FILES_SLACK
        or now.threads > was.threads + _THREADS_SLACK
        or now.tasks > was.tasks + _TASKS_SLACK
        for was, now in zip(before, after, strict=True)
    ]
    memory = [sum(one.memory for one in sizes) / 2**20 for sizes in (after, before)]
    return [
        at_most("services that grew in memory, open files, threads or tasks", sum(grown), 0, 1),
        at_most("memory of all, MiB, at the end beside after 40 %", memory[0], memory[1]),
        at_most("open files of all, likewise", sum(one.files for one in after),
                sum(one.files for one in before)),
        at_most("tasks of event loops, likewise", sum(one.tasks for one in after),
                sum(one.tasks for one in before)),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row does not hold."""
    args = _arguments(argv)
    print(hardware(("uvicorn", "httptools", "msgspec"), args.seed), flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-") as name,
        attacked(Path(name)) as services,
    ):
        if args.only is not None:
            only = range(args.only, args.only + 1)
            found = _attack(targets(services), doors(services), args.seed, only)
            print(case(args.seed, args.only, targets(services)).sent[:3000])
            print("\n".join([str(dict(found.statuses)), *found.defects, *traces(services)]))
            return 1 if found.defects else 0
        rows = run(services, args.seed, args.requests or (QUICK if args.quick else REQUESTS))
    print("\n".join([head(), *map(line, rows)]))
    return finish(rows, args.json)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("fuzz", __doc__)
    parser.add_argument(
        "--requests", type=int, default=0, help=f"how many ({REQUESTS}; --quick: {QUICK})"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the requests")
    parser.add_argument("--only", type=int, help="send only the request with this number")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
