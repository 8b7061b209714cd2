"""How long a run is measured: for so many median lifetimes of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.records import Record, Span, median_lifetime

_DRAIN_S = 120.0
_LOOK_S = 1.0


@dataclass
class RunLength:
    """Of one run, whose `records` grow as its requests arrive."""

    clock: Clock
    records: Sequence[Record]
    span: Span

    def run(self) -> float:
        """Let the time to measure pass; its end.

        Requests go on arriving until the last measured one has ended, or cannot keep its objectives
        any more: a fleet that empties would serve the last ones better than they deserve. Where
        they have lived longer than was foreseen, those that came meanwhile are measured as well.
        """
        self.clock.run(self.span.warm_s)
        passed = 0.0
        while True:
            passed = self._until_enough(passed)
            end = self.span.warm_s + passed
            found = self.measured(end)
            self._until_over(found, end)
            if self._hopeless(found, passed) or passed >= self._needed(found, passed):
                return end
            passed = min(self.span.most_s, self.clock.now - self.span.warm_s)

    def measured(self, end: float) -> list[Record]:
        """Of the requests that arrived before."""
        return [r for r in self.records if self.span.warm_s <= r.arrival < end]

    def _until_enough(self, passed: float) -> float:
        while True:
            found = self.measured(self.clock.now)
            needed = self._needed(found, passed)
            if passed >= needed or self._hopeless(found, passed):
                return passed
            passed = min(needed, passed + max(self.span.least_s / 4, _LOOK_S))
            self.clock.run(self.span.warm_s + passed)

    def _needed(self, found: Sequence[Record], passed: float) -> float:
        """Seconds to measure, by the requests so far."""
        span = self.span
        if passed < span.least_s:
            return span.least_s
        # Those that came late have not lived for long yet, so the older half counts too.
        older = [r for r in found if r.arrival < span.warm_s + passed / 2]
        lifetime = max(median_lifetime(group, self.clock.now) for group in (found, older))
        return min(span.most_s, max(span.least_s, span.lifetimes * lifetime))

    def _hopeless(self, found: Sequence[Record], passed: float) -> bool:
        late = sum(r.lost(self.clock.now) for r in found)
        return passed >= self.span.least_s / 2 and late > self.span.hopeless * len(found)

    def _until_over(self, found: Sequence[Record], end: float) -> None:
        until, open_ = end, found
        while open_ and until < end + _DRAIN_S:
            until += _LOOK_S
            self.clock.run(until)
            open_ = [r for r in open_ if not r.over and not r.lost(self.clock.now)]
