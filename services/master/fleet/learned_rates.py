"""How fast a worker is that does not measure itself, from what proxies report of its calls.

A call's duration holds the time it waited behind others, so that no single one says how long its
work takes. What does is a busy period: from the first call of a run that overlaps to its end the
worker was at work all the time, and has done all of their work. Its duration is base + tokens *
rate. A decode step's duration is the time per output token, however many share the step: base +
requests * rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from protocol.registry import Rates

UNMEASURED = Rates()
_MEMORY = 0.98  # what a measurement still weighs after the next one: some fifty count
_STEP_MEMORY = 0.995  # of decode steps: two hundred, as crowds of one size tell no slope
_BASE_TRUST, _SLOPE_TRUST = 1.0, 0.2  # of computing: its base is small, what a token takes is not
_STEP_BASE_TRUST, _STEP_SLOPE_TRUST = 0.1, 1.0  # of decode steps it is the other way round
_LIKE_OTHERS = 1.0  # measurements that what other workers take counts for
_SAME = 0.05  # of a rate: no news
_NOTHING = 0.1  # measurements
_STEADY = 8.0  # measurements after which one far from the rest is not believed at once
_OFF = 4.0  # times more or less than foreseen: counted as so much, no more
_LONGEST_PERIOD = 16  # calls; under load a worker may never be idle
_LEAST_MS = 1e-6
_LEAST_OUTPUT = 4
_LONGEST_MS = 3_600e3


@dataclass
class LineFit:
    """y ≈ base * a + slope * x, neither below 0, by least squares over the latest measurements.

    `base`, `slope`: the prior, which counts for so many measurements at a `typical` x (`trusts`,
    of each of the two): while x has hardly varied, the slope is the prior's, and not what noise
    makes of it. Only sums are kept. A measurement far from what is foreseen counts as four times
    more or less at the most: a wrong report changes little, a real change is learnt in a few steps.
    """

    base: float
    slope: float
    typical: float
    trusts: tuple[float, float] = (_STEP_BASE_TRUST, _STEP_SLOPE_TRUST)
    memory: float = _STEP_MEMORY  # factor of older measurements at each new one
    weight: float = 0.0  # measurements that count
    silent: int = 0  # looks in a row that found no new one, and none on its way
    known: bool = False  # by measurements, of this worker or of like ones
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5, init=False)
    # (base, slope) by which errors are relative; not the prior's, which may change: old and new
    # measurements would not count alike
    _scale: tuple[float, float] = field(init=False)
    _new: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._scale = self.base, self.slope

    def add(self, a: float, x: float, y: float) -> None:
        """`a` 1 where the base is part of `y`, 0 where it is not."""
        if not (x > 0.0 and 0.0 < y < math.inf):
            return
        # Before that what is foreseen is mostly the prior, which may be far off itself.
        if self.weight >= _STEADY:
            base, slope = self.solve()
            foreseen = max(_LEAST_MS, base * a + slope * x)
            y = min(max(y, foreseen / _OFF), foreseen * _OFF)
        each = self._weight(x)
        new = (a * a * each, a * x * each, x * x * each, a * y * each, x * y * each)
        self._sums = [old * self.memory + more for old, more in zip(self._sums, new, strict=True)]
        self.weight = self.weight * self.memory + 1.0
        self._new = self.known = True

    def look(self, *, idle: bool) -> None:
        """See whether there are new measurements since the last look; while the worker is not
        `idle` there will be."""
        self.silent, self._new = self.silent + 1 if idle and not self._new else 0, False

    def expect(self, base: float, slope: float) -> bool:
        """What is known of like workers: it counts for as long as there are few measurements of
        this one. Whether that is news."""
        same = abs(self.base - base) <= _SAME * base and abs(self.slope - slope) <= _SAME * slope
        if not (same and self.known):
            self.base, self.slope, self.known = base, slope, True
            self.trusts = _LIKE_OTHERS, _LIKE_OTHERS
            return True
        return False

    def forget(self, kept: float) -> bool:
        """Measurements count for `kept` of what they did, until next to nothing is left; whether
        there were any."""
        if not self.weight:
            return False
        kept = kept if self.weight * kept > _NOTHING else 0.0
        self._sums = [old * kept for old in self._sums]
        self.weight *= kept
        return True

    def _weight(self, x: float) -> float:
        """Relative errors count: busy periods differ by orders of magnitude."""
        base, slope = self._scale
        scale = base + slope * x
        return 1.0 / (scale * scale)

    def solve(self) -> tuple[float, float]:
        """(base, slope)"""
        aa, ax, xx, ay, xy = self._sums
        each, at = self._weight(self.typical), self.typical
        base_trust, slope_trust = self.trusts
        aa, ay = aa + base_trust * each, ay + base_trust * each * self.base
        each *= slope_trust * at * at
        xx, xy = xx + each, xy + each * self.slope
        determinant = aa * xx - ax * ax
        if determinant <= 1e-12 * aa * xx:
            return 0.0, max(_LEAST_MS, xy / xx)
        base = (ay * xx - xy * ax) / determinant
        slope = (aa * xy - ax * ay) / determinant
        # Neither may be below 0: the one that would be stands at its least, the other fits best.
        if base < 0.0:
            return 0.0, max(_LEAST_MS, xy / xx)
        if slope < _LEAST_MS:
            return max(0.0, ay / aa), _LEAST_MS
        return base, slope


@dataclass
class BusyPeriods:
    """Calls of one worker, in the order of their ends, joined into periods. Times are ms."""

    fit: LineFit  # of base and slope, from periods
    _start: float = 0.0  # when the open period began
    _end: float = -math.inf  # when its last call ended
    _tokens: float = 0.0  # tokens of its calls
    _calls: int = 0  # number of its calls
    _first: float = 1.0  # 1 if it pays a base, 0 if it goes on from another
    _counted: float = -math.inf  # end of what has been counted

    def add(self, start: float, end: float, tokens: float) -> None:
        """A call has ended. A period counts once the next one has begun, or when it is long."""
        if not (end > start and tokens > 0.0 and end - start < _LONGEST_MS):
            return
        if start > self._end:
            self._close()
            self._start, self._first = start, 1.0
        # What was done before belongs to a period that has been counted.
        self._start = max(self._counted, min(self._start, start))
        self._end = max(self._end, end)
        self._tokens += tokens
        self._calls += 1
        if self._calls >= _LONGEST_PERIOD:
            self._close()
            # The worker goes on without a pause, so the next period pays no base.
            self._start, self._first = self._end, 0.0

    def _close(self) -> None:
        if self._calls:
            self.fit.add(self._first, self._tokens, self._end - self._start)
            self._counted = self._end
        self._tokens, self._calls = 0.0, 0


@dataclass
class Concurrency:
    """How many requests decode at a worker, over time."""

    now: int = 0
    area: float = 0.0
    _at: float = 0.0

    def until(self, now_ms: float) -> float:
        """Requests times ms since ever."""
        if now_ms > self._at:
            self.area += self.now * (now_ms - self._at)
            self._at = now_ms
        return self.area

    def change(self, by: int, now_ms: float) -> float:
        area = self.until(now_ms)
        self.now = max(0, self.now + by)
        return area


@dataclass
class RateLearner:
    """One worker's. `computed` is of encode or prefill, by what the worker does."""

    computing: BusyPeriods
    steps: LineFit
    decoding: Concurrency = field(default_factory=Concurrency)

    def computed(self, elapsed_ms: float, tokens: float, now_ms: float) -> None:
        """A call that has ended now took so long, and was for so many tokens."""
        self.computing.add(now_ms - elapsed_ms, now_ms, tokens)

    def decoded(self, tpot_ms: float, requests: float, output: int) -> None:
        """An answer took so long per token while so many requests decoded there."""
        if output >= _LEAST_OUTPUT and tpot_ms < _LONGEST_MS:
            self.steps.add(1.0, max(1.0, requests), tpot_ms)

    def rates(self) -> Rates:
        """What was learnt, 0 where nothing was; `encode` and `prefill` alike."""
        base, token = self.computing.fit.solve() if self.computing.fit.known else (0.0, 0.0)
        step, request = self.steps.solve() if self.steps.known else (0.0, 0.0)
        return Rates(
            encode_base_ms=base, encode_ms_per_token=token,
            prefill_base_ms=base, prefill_ms_per_token=token,
            decode_base_ms=step, decode_ms_per_request=request,
        )  # fmt: skip


def learner(token_ms: float, step_ms: float, request_ms: float) -> RateLearner:
    """A learner whose priors are these."""
    trusts = _BASE_TRUST, _SLOPE_TRUST
    token_ms = max(token_ms, _LEAST_MS)
    computing = LineFit(0.0, token_ms, 1000.0, trusts=trusts, memory=_MEMORY)
    return RateLearner(BusyPeriods(computing), LineFit(step_ms, request_ms, 8.0))


def merged(told: Rates, learnt: Rates) -> Rates:
    """A worker that measures a kind of work by itself is believed in all that makes it up."""
    if learnt is UNMEASURED:
        return told
    changes: dict[str, float] = {}
    for kind in ("encode", "prefill", "decode"):
        names = [name for name in Rates.__struct_fields__ if name.startswith(kind)]
        if not any(getattr(told, name) for name in names):
            changes |= {name: getattr(learnt, name) for name in names}
    return msgspec.structs.replace(told, **changes)
