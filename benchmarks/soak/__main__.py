"""Minutes of mixed requests with clients that leave and workers that are killed; nothing is left.

    python -m benchmarks.soak [--minutes 10] [--quick] [--json FILE] [--transport shm]

Two workers of each role and a proxy, all real, on this machine. Clients ask the demonstration model
about pictures (none, one, several; new ones and repeated ones), some leave half-way. Every so often
a worker or its engine is killed with −9 and started again. At the end, idle, with caches dropped,
memory, descriptors, segments, files, blocks and stores are held against what they were after the
warm-up (`peer`). Only requests in flight on a killed worker may fail, with a clear error; an answer
that differs from the first one to the same question is wrong. Exit status 1 if a row does not hold.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.rows import Row, arguments, at_most, finish, hardware, head, line
from benchmarks.soak.books import Books, settle, totals
from benchmarks.soak.load import Load, Outcome
from benchmarks.soak.stack import TRANSPORTS, Stack, running

CLIENTS = 3
SEED = 7
NOTICE_S = 1.0  # a worker's death is known by then
MEMORY_BAR, DESCRIPTOR_BAR = 1.2, 1.25


@dataclass
class Chaos:
    """Kills one worker at a time. `windows`: when each was killed and when it was back."""

    stack: Stack
    chance: random.Random
    pause_s: float
    windows: list[tuple[str, float, float]] = field(default_factory=list)

    def run(self, until: float) -> None:
        while time.monotonic() + 2 * self.pause_s < until:
            time.sleep(self.chance.uniform(0.5, 1.0) * self.pause_s)
            worker = self.chance.choice(self.stack.workers)
            killed = time.monotonic()
            what = worker.kill(self.chance.randrange(2))
            time.sleep(self.chance.uniform(0.0, 2.0))
            worker.start()
            worker.wait_ready()
            self.windows.append((what, killed, time.monotonic()))
            print(f"  killed {what}, back after {time.monotonic() - killed:.1f} s", flush=True)
        time.sleep(max(0.0, until - time.monotonic()))


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    print(f"soak over {args.transport}, {args.minutes:g} minutes, {CLIENTS} clients")
    print(hardware(("torch", "nixl", "ucxx-cu13", "pyzmq"), SEED), flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        warm_s = 15.0 if args.quick else min(60.0, args.minutes * 15)
        rows = soak(args.transport, args.minutes * 60, warm_s, Path(name))
    print("\n".join([head(), *map(line, rows)]))
    return finish(rows, args.json)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("soak", __doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--transport", choices=TRANSPORTS, default="shm")
    args = parser.parse_args(argv)
    if args.quick:
        args.minutes = 0.5
    return args


def soak(transport: str, seconds: float, warm_s: float, folder: Path) -> list[Row]:
    """Warm up, look, load and kill, look again, stop."""
    counts = {"encoder": 2, "prefill": 2, "decode": 2}
    with running(transport, counts, folder) as stack:
        load = Load([stack.proxies[0].port], SEED)
        load.learn()
        load.start(CLIENTS)
        time.sleep(warm_s)
        load.stop()
        before = settle(stack)
        failed = [outcome for outcome in load.outcomes if outcome.verdict in ("failed", "wrong")]
        load.start(CLIENTS)
        chaos = Chaos(stack, random.Random(SEED), 4.0 if seconds <= 60 else 12.0)
        chaos.run(time.monotonic() + seconds)
        load.stop()
        sums = totals(stack)
        after = settle(stack)
        stopped = [service.stop() for service in (*stack.proxies, *stack.workers)]
        left = len(list(folder.glob("shared/*"))) + stack.segments.exists()
    assert not failed, f"before anything was killed: {failed[:3]}"
    _tell(load.outcomes, chaos, sums, after)
    return [
        *_outcome_rows(load.outcomes, chaos),
        *_book_rows(before, after),
        at_most("after stopping: exit statuses not 0", sum(map(bool, stopped)), 0, 1),
        at_most("after stopping: files and segments left", left, 0, 1),
    ]


def _outcome_rows(outcomes: list[Outcome], chaos: Chaos) -> list[Row]:
    failed = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    alone = [outcome for outcome in failed if not _excused(outcome, chaos)]
    unclear = [outcome for outcome in failed if not outcome.code]
    wrong = [outcome for outcome in outcomes if outcome.verdict == "wrong"]
    for outcome in (*alone, *unclear, *wrong):
        print("  NOT EXCUSED:", outcome)
    return [
        at_most("failed though no worker of theirs was killed", len(alone), 0, 1),
        at_most("failed without a clear error", len(unclear), 0, 1),
        at_most("answered wrongly", len(wrong), 0, 1),
    ]


def _excused(outcome: Outcome, chaos: Chaos) -> bool:
    """Whether a worker was killed while the request was under way, or its death not known yet."""
    return any(
        outcome.began < killed + NOTICE_S and outcome.ended > killed
        for _, killed, _ in chaos.windows
    )


def _book_rows(before: Books, after: Books) -> list[Row]:
    mega = 1 << 20
    rows = [at_most("integrity: problems", len(after.problems), len(before.problems), 1)]
    rows += [
        at_most(f"{name}: private memory, MiB", size / mega, before.memory[name] / mega, MEMORY_BAR)
        for name, size in after.memory.items()
    ]
    rows += [
        at_most(f"{name}: descriptors", count, before.descriptors[name], DESCRIPTOR_BAR)
        for name, count in after.descriptors.items()
    ]
    rows += [
        at_most(f"{name}: blocks not free", before.blocks[name] - free, 0, 1)
        for name, free in after.blocks.items()
    ]
    rows += [at_most(f"{name}: bytes held", size, 0, 1) for name, size in after.held.items()]
    return [
        *rows,
        at_most("shared-memory segments", after.segments, before.segments, 1),
        at_most("shared-memory MiB", after.segment_bytes / mega, before.segment_bytes / mega, 1.1),
        at_most("files on shared storage", after.files, before.files, 1),
    ]


def _tell(outcomes: list[Outcome], chaos: Chaos, sums: dict[str, int], after: Books) -> None:
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    print(f"{len(outcomes)} requests, {dict(verdicts)}; {len(chaos.windows)} kills")
    failures = Counter((o.status, o.code) for o in outcomes if o.verdict == "failed")
    for (status, code), count in failures.items():
        print(f"  {count} x HTTP {status} {code or '(no code)'}, in flight on a killed worker")
    print("  connectors:", ", ".join(f"{name} {count}" for name, count in sorted(sums.items())))
    for problem in after.problems:
        print("  PROBLEM:", problem)


if __name__ == "__main__":
    sys.exit(main())
