"""What a worker measures of itself while it works: milliseconds by kind of work, bytes per ms.

Least squares with exponential forgetting and without negative coefficients. Only the normal
equations are kept, so that a step costs the product of a few numbers; they are solved when asked
for, exactly, by trying every set of features that may be used. There are few, so this is quick.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from connectors.meter import TransferStats
from protocol.registry import Rates
from services.engine.scheduling.chunks import Work
from services.engine.scheduling.seams import Clock

_STEP_MEMORY = 1000  # steps after which a measurement weighs 1/e
_RUN_MEMORY = 100  # the same of encoder runs, which are fewer
_WARM_UP = 2  # the first measurements are of code and caches that are cold
_ENOUGH = 2.0  # measurements before anything is said
_WORTH = 0.02  # share of the remaining error that another set of features must explain
_DOUBT = 4.0  # divided by the number of measurements: the share that may well be chance
_READINGS_MEMORY = 30  # the same of readings of the connectors' counts


class LinearFit:
    """y ≈ x · coefficients, all of them at least 0, over the latest measurements.

    Of sets of features that explain them equally well the smallest is taken, of these the one whose
    members come first in `order`: what varies little is not to be priced by what it varies with.
    """

    def __init__(self, order: Sequence[int], memory: float) -> None:
        features = len(order)
        self._order = order
        self._keep = 1.0 - 1.0 / memory
        self._products = np.zeros((features, features))
        self._targets = np.zeros(features)
        self._squares = 0.0
        self._weight = 0.0
        self._cold = _WARM_UP

    def add(self, x: Sequence[float], y: float) -> None:
        if self._cold:
            self._cold -= 1
            return
        row = np.asarray(x, dtype=np.float64)
        self._products = self._products * self._keep + np.outer(row, row)
        self._targets = self._targets * self._keep + row * y
        self._squares = self._squares * self._keep + y * y
        self._weight = self._weight * self._keep + 1.0

    def solve(self) -> NDArray[np.float64]:
        """Coefficients [features]; 0 for what was not seen, or explains what others do as well."""
        best = np.zeros(len(self._targets))
        if self._weight < _ENOUGH:
            return best
        least, left = self._squares, max(0.1, 1.0 - _WORTH - _DOUBT / self._weight)
        seen = [i for i in self._order if self._products[i, i] > 0.0]
        for size in range(1, len(seen) + 1):
            for chosen in combinations(seen, size):
                found = self._fit(list(chosen))
                if found is not None and found[1] < least * left:
                    best, least = found
        return best

    def _fit(self, chosen: list[int]) -> tuple[NDArray[np.float64], float] | None:
        """(coefficients, squared error) with these features alone; None if one is not positive."""
        # Ones beside hundreds of thousands of tokens: without a scale the sum is ill-conditioned.
        # The 1e-9 lets features that have always come alike be solved for, too.
        scale = 1.0 / np.sqrt(self._products.diagonal()[chosen])
        products = self._products[np.ix_(chosen, chosen)] * np.outer(scale, scale)
        targets = self._targets[chosen] * scale
        try:
            solution = np.linalg.solve(products + 1e-9 * np.eye(len(chosen)), targets)
        except np.linalg.LinAlgError:
            return None
        if (solution <= 0.0).any():
            return None
        error = self._squares - 2.0 * solution @ targets + solution @ products @ solution
        whole = np.zeros(len(self._targets))
        whole[chosen] = solution * scale
        return whole, max(0.0, float(error))


class RateMeter:
    """The rates of one engine.

    Features of an encoder run: base, tokens; of a step: prefill base, tokens computed, tokens
    reused, decode base, requests that decode, tokens of their contexts; of transfers between two
    readings: their number, their bytes.
    """

    def __init__(self, max_age_s: float = 1.0, clock: Clock = time.monotonic) -> None:
        """`rates` are reckoned anew when they are older than `max_age_s`."""
        self._clock = clock
        self._max_age_s = max_age_s
        self._rates = Rates()
        self._reckoned = float("-inf")
        self._runs = LinearFit((1, 0), _RUN_MEMORY)
        self._steps = LinearFit((1, 3, 4, 0, 5, 2), _STEP_MEMORY)
        self._transfers = LinearFit((1, 0), _READINGS_MEMORY)
        self._seen = (0, 0, 0.0)

    def encoded(self, tokens: int, seconds: float) -> None:
        """An encoder run that made `tokens` embeddings."""
        self._runs.add((1.0, tokens), seconds * 1e3)

    def stepped(self, work: Work, seconds: float) -> None:
        """A step of prompts and of requests that decode."""
        prefills, decodes = float(work.computed > 0), float(work.requests > 0)
        features = prefills, work.computed, work.reused, decodes, work.requests, work.context
        self._steps.add(features, seconds * 1e3)

    def transferred(self, stats: Iterable[TransferStats]) -> None:
        """The connectors' counts as they are now. Each transfer takes a while of its own, however
        little it moves: that is no matter of bytes."""
        counts = list(stats)
        now = (
            sum(c.transfers for c in counts),
            sum(c.bytes for c in counts),
            sum(c.copy_seconds for c in counts),
        )
        before, self._seen = self._seen, now
        if now[0] > before[0]:
            transfers, nbytes = now[0] - before[0], now[1] - before[1]
            self._transfers.add((transfers, nbytes), (now[2] - before[2]) * 1e3)

    def rates(self) -> Rates:
        """0 where nothing has been measured."""
        now = self._clock()
        if now - self._reckoned >= self._max_age_s:
            self._reckoned, self._rates = now, self._reckon()
        return self._rates

    def _reckon(self) -> Rates:
        run, step = self._runs.solve().tolist(), self._steps.solve().tolist()
        per_byte_ms = float(self._transfers.solve()[1])
        return Rates(
            encode_base_ms=run[0],
            encode_ms_per_token=run[1],
            prefill_base_ms=step[0],
            prefill_ms_per_token=step[1],
            prefill_ms_per_cached_token=step[2],
            decode_base_ms=step[3],
            decode_ms_per_request=step[4],
            decode_ms_per_context_token=step[5],
            transfer_bytes_per_ms=1.0 / per_byte_ms if per_byte_ms > 1e-12 else 0.0,
        )
