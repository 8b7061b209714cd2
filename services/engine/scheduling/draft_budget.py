"""How many tokens are guessed ahead for a request: as many as pay, by what steps turn out to take.

A guess pays where the tokens that it gives on average, which is the chance that it is right and all
before it are, are worth more than the time that it adds to a step: where they raise the tokens a
second of all requests that decode. Both are measured: chances by request, times by the number of
requests that decode. So a draft model that is often wrong, or a batch that leaves a step no time to
spare, costs a few guesses now and then and no more.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from services.engine.scheduling.chunks import Work
from services.engine.scheduling.request import Request

_PLAIN_EVERY = 64  # steps after which one without guesses is measured again
_PLAIN_FIRST, _GUESSES_FIRST = 2, 3  # steps of each kind before their times are taken for known
# Times of steps; the longest and shortest do not count, as some steps are held up.
_KEPT, _PLAIN_KEPT = 12, 5
_OTHER = 1.5  # times as long, or as short: steps are others than before, as with longer contexts
# Shares of the time that go to guesses which do not pay by what is known. A probe is one guess for
# each request: it shows whether guesses are right by now. To know what a guess costs, all that may
# be are made.
_PROBE_SHARE, _COST_SHARE = 0.02, 0.01

_OF_REQUEST, _OF_ALL = 0.9, 0.99  # weight of what was seen before, at each further draft
_PRIOR = 5.0  # guesses of all requests that count for one that is new
_FIRST = 0.7  # share of right guesses that is expected at the start


@dataclass
class _Chance:
    """Guesses that were right, of those that were checked up to the first wrong one."""

    right: float = 0.0
    checked: float = 0.0

    def learn(self, guessed: int, right: int, kept: float) -> None:
        self.right = kept * self.right + right
        self.checked = kept * self.checked + min(guessed, right + 1)

    def share(self, expected: float, weight: float) -> float:
        return (weight * expected + self.right) / (weight + self.checked)


@dataclass
class _Load:
    """What steps took in which so many requests decode and nothing else is computed [s]."""

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=_PLAIN_KEPT))
    # what steps with guesses took more, and how many were guessed in them
    guess: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    since_plain: int = 0  # steps since the last without guesses
    since_probe_s: float = 0.0  # that steps have taken since
    since_costs_s: float = 0.0

    @property
    def plain_s(self) -> float:
        return statistics.median_low(self.plain)

    def took_plain(self, seconds: float) -> None:
        """A step without guesses has ended."""
        before = self.plain_s if self.plain else 0.0
        self.plain.append(seconds)
        self.since_plain = 0
        if self.plain_s > _OTHER * before or before > _OTHER * self.plain_s:
            self.guess.clear()  # what guesses took more was taken by the former time

    @property
    def guess_s(self) -> float:
        """For each token that is guessed."""
        ordered = sorted(self.guess, key=lambda step: step[0] / step[1])
        cut = max(1, len(ordered) // 4)
        kept = ordered[cut : len(ordered) - cut]
        return max(0.0, sum(more for more, _ in kept) / sum(guessed for _, guessed in kept))


class DraftBudget:
    """`tokens`: the most that are guessed for a request in a step; none are if more than `requests`
    decode in it. Without `adaptive` all that may be are."""

    def __init__(self, tokens: int, requests: int, *, adaptive: bool = True) -> None:
        self._tokens = tokens
        self._requests = requests
        self._adaptive = adaptive
        self._loads: dict[int, _Load] = {}  # by the number of requests that decode
        self._all = _Chance(_PRIOR * _FIRST, _PRIOR)
        self._chances: WeakKeyDictionary[Request, _Chance] = WeakKeyDictionary()
        self._guessed = 0  # in the step under way
        self._probes = False  # whether each request has a guess in it, also where that does not pay
        self._plain = True  # whether none may be guessed in it

    def of_step(self, requests: Sequence[Request], decoding: int) -> list[int]:
        """How many tokens to guess for each of `requests` in a step in which `decoding` decode."""
        self._guessed, self._probes = 0, False
        counts = self._counts(requests, decoding)
        self._plain = not any(counts)
        return counts

    def _counts(self, requests: Sequence[Request], decoding: int) -> list[int]:
        if decoding > self._requests:
            return [0] * len(requests)
        if not self._adaptive:
            return [self._tokens] * len(requests)
        load = self._loads.setdefault(decoding, _Load())
        if len(load.plain) < _PLAIN_FIRST or load.since_plain >= _PLAIN_EVERY:
            return [0] * len(requests)
        every = self._tokens * len(requests)
        known = len(load.guess) >= _GUESSES_FIRST
        if not known or _COST_SHARE * load.since_costs_s > every * load.guess_s:
            return [self._tokens] * len(requests)
        counts = self._paying([self._chance(request) for request in requests], decoding, load)
        if _PROBE_SHARE * load.since_probe_s > counts.count(0) * load.guess_s:
            self._probes = 0 in counts
            counts = [max(1, count) for count in counts]
        return counts

    def _chance(self, request: Request) -> float:
        expected = self._all.share(_FIRST, 0.0)
        return self._chances.setdefault(request, _Chance()).share(expected, _PRIOR)

    def _paying(self, chances: Sequence[float], decoding: int, load: _Load) -> list[int]:
        """The likeliest guesses, as long as each raises the tokens a second of the step."""
        guesses = sorted(
            ((chance**nth, place) for place, chance in enumerate(chances)
             for nth in range(1, self._tokens + 1)),
            reverse=True,
        )  # fmt: skip
        counts = [0] * len(chances)
        tokens, seconds, more = float(decoding), load.plain_s, load.guess_s
        for chance, place in guesses:
            if chance * seconds <= more * tokens:
                break
            counts[place] += 1
            tokens, seconds = tokens + chance, seconds + more
        return counts

    def checked(self, request: Request, guessed: int, right: int) -> None:
        """So many tokens were guessed for a request in the step, and of those were right."""
        self._guessed += guessed
        self._all.learn(guessed, right, _OF_ALL)
        self._chances.setdefault(request, _Chance()).learn(guessed, right, _OF_REQUEST)

    def took(self, work: Work, seconds: float) -> None:
        """The step has ended. One with prompts says nothing of those that decode."""
        load = self._loads.get(work.requests)
        if load is None or work.computed:
            return
        load.since_plain += 1
        load.since_probe_s += seconds
        load.since_costs_s += seconds
        if self._plain:
            load.took_plain(seconds)
        elif self._probes:
            # Its time is not kept: a draft model computes first what it has passed over.
            load.since_probe_s = 0.0
        elif self._guessed:
            load.guess.append((seconds - load.plain_s, self._guessed))
            load.since_costs_s = 0.0
