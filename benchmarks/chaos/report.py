"""What became of requests during each act, and what is left in the end, as rows."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from benchmarks.chaos.acts import KILL, TERMINATE, Act, meets
from benchmarks.common.rows import Row, at_most
from benchmarks.soak.books import Books
from benchmarks.soak.load import Outcome

DRAIN_DELAY_S = 1.0  # the proxies' ports are open for so long after SIGTERM


def excused(outcome: Outcome, act: Act) -> bool:
    """Of a proxy that was killed, what was under way then or came while it was away; of one that
    was told to stop, only what came once its port was closed."""
    if act.what == TERMINATE:
        return act.began + DRAIN_DELAY_S < outcome.began < act.back
    return act.what == KILL and meets(outcome, act)


def outcome_rows(outcomes: list[Outcome], acts: Sequence[Act], gone: int) -> list[Row]:
    """`gone`: the port of the proxy that was killed, and told to stop."""
    failed = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    broken = [one for one in failed if one.port == gone and any(excused(one, act) for act in acts)]
    wrong = [outcome for outcome in outcomes if outcome.verdict == "wrong"]
    for one in [one for one in failed if one not in broken] + wrong:
        met = [act.what for act in acts if meets(one, act)]
        print("  NOT EXCUSED:", one, "during", *(met or ["nothing"]))
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


def tell(outcomes: list[Outcome], acts: Sequence[Act]) -> None:
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
