"""Each part of a stack killed, drained and stalled in turn under load; clients notice nothing.

    python -m benchmarks.chaos [--quick] [--json FILE] [--transport shm] [--dtype float32]
                               [--only REGEX]

Two encoders, two prefill workers, two decode workers, a master and two proxies, all real, on this
machine. Clients, half of them at each proxy, ask the demonstration model for long answers, greedy
and sampled by a seed, whole and streamed. Each worker is killed with −9 and started again, one of
each role is drained and started again, one of each is stopped by signal and goes on, both of its
processes, its engine alone and its HTTP process alone, one of each answers its work with 503, with
garbage, with nothing and with the 404 of another service while its probes go well, the master is
killed and started again, one proxy is told to stop and started again, at last it is killed. `ours`
counts what must be none (`peer`): requests that failed (at the killed proxy: but those under way;
at the one that was told to stop: but those that were sent once its port was closed), tokens other
than those of an undisturbed run, blocks and bytes still held once all is idle. Exit status 1 if a
row does not hold.

In bfloat16 what a token comes out as depends on what is computed beside it, wherever two are about
as likely: answers, all greedy, are the same up to a token that led by no more than a few steps of
that format. The leads at which answers parted are printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos_acts import KILL, TERMINATE, Act, Play, meets
from benchmarks.common.rows import Row, arguments, at_most, finish, hardware, head, line
from benchmarks.soak.books import Books, settle
from benchmarks.soak.load import Load, Outcome
from benchmarks.soak.stack import TRANSPORTS, running

CLIENTS = 4
SEED = 11
TOKENS = 120
_DRAIN_DELAY_S = 1.0  # the proxies' ports are open for so long after SIGTERM
_SOON = ("--encode-timeout", "8", "--prefill-timeout", "8", "--first-token-timeout", "8",
         "--video-timeout", "4")  # fmt: skip
_TIE = 0.25  # of logits, whose steps in bfloat16 are an eighth from 16 on
_VERSIONS = ("torch", "transformers", "nixl", "ucxx-cu13", "pyzmq")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row does not hold."""
    args = _arguments(argv)
    print(hardware(_VERSIONS, SEED))
    print(f"chaos over {args.transport}, {CLIENTS} clients, {TOKENS} tokens each", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        rows = chaos(args.transport, args.dtype, Path(name), args.quick, args.only)
    print("\n".join([head(), *map(line, rows)]))
    return finish(rows, args.json)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("chaos", __doc__)
    parser.add_argument("--transport", choices=TRANSPORTS, default="shm")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--only", default="", help="acts whose names this regular expression finds")
    return parser.parse_args(argv)


def chaos(transport: str, dtype: str, folder: Path, quick: bool, only: str = "") -> list[Row]:
    """Learn the right answers, play, look what is left, ask the new questions once more."""
    counts = {"encoder": 2, "prefill": 2, "decode": 2}
    tie = _TIE if dtype == "bfloat16" else 0.0
    flags = ("--drain-delay", str(_DRAIN_DELAY_S), *_SOON)
    with running(
        transport, counts, folder,
        master=True, proxies=2, dtype=dtype, interposed=True, proxy_flags=flags,
    ) as stack:  # fmt: skip
        ports = [proxy.port for proxy in stack.proxies]
        load = Load(ports, SEED, fresh=0.3, aborted=0.0, length=TOKENS, tie=tie)
        load.learn()
        before = settle(stack)
        load.start(CLIENTS)
        play = Play(stack)
        play.run(quick, only)
        load.stop()
        after = settle(stack)
        changed = load.check_new()
        stopped = [s.stop() for s in (*stack.proxies, *stack.workers, *stack.masters)]
    tell(load.outcomes, play.acts)
    if load.ties:
        print(
            f"{len(load.ties)} answers parted at leads of", *sorted(map("{:.3f}".format, load.ties))
        )
    return [
        *_outcome_rows(load.outcomes, play.acts, ports[1]),
        at_most("new questions answered otherwise once more, undisturbed", changed, 0, 1),
        *left_rows(before, after),
        at_most("exit statuses not 0", sum(map(bool, stopped)), 0, 1),
    ]


def _excused(outcome: Outcome, act: Act) -> bool:
    """Of a proxy that was killed, what was under way then or came while it was away; of one that
    was told to stop, only what came once its port was closed."""
    if act.what == TERMINATE:
        return act.began + _DRAIN_DELAY_S < outcome.began < act.back
    return act.what == KILL and meets(outcome, act)


def _outcome_rows(outcomes: list[Outcome], acts: list[Act], gone: int) -> list[Row]:
    """`gone`: the port of the proxy that was killed, and told to stop."""
    failed = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    broken = [one for one in failed if one.port == gone and any(_excused(one, act) for act in acts)]
    wrong = [outcome for outcome in outcomes if outcome.verdict == "wrong"]
    for one in [one for one in failed if one not in broken] + wrong:
        print("  NOT EXCUSED:", one)
    return [
        at_most("requests failed", len(failed) - len(broken), 0, 1),
        at_most("answers other than the undisturbed ones", len(wrong), 0, 1),
    ]


def left_rows(before: Books, after: Books) -> list[Row]:
    for problem in after.problems:
        print("  LEFT:", problem)
    lost = sum(before.blocks[name] - free for name, free in after.blocks.items())
    return [
        at_most("integrity: problems, leases and requests left", len(after.problems), 0, 1),
        at_most("KV blocks not free", lost, 0, 1),
        at_most("bytes held for others", sum(after.held.values()), 0, 1),
        at_most("shared-memory segments", after.segments, before.segments, 1),
        at_most("files on shared storage", after.files, before.files, 1),
    ]


def tell(outcomes: list[Outcome], acts: list[Act]) -> None:
    """How long answers took when nothing was wrong, and during each act."""
    print(f"{len(outcomes)} requests, {dict(Counter(o.verdict for o in outcomes))}")
    calm = [o for o in outcomes if not any(meets(o, act) for act in acts)]
    for what, found in (("undisturbed", calm), *((a.what, _during(outcomes, a)) for a in acts)):
        times = [o.ended - o.began for o in found if o.verdict == "right"]
        if times:
            print(
                f"  {what:24} {len(times):5} answered, median {statistics.median(times):.2f} s, "
                f"longest {max(times):.2f} s"
            )


def _during(outcomes: list[Outcome], act: Act) -> list[Outcome]:
    return [outcome for outcome in outcomes if meets(outcome, act)]


if __name__ == "__main__":
    sys.exit(main())
