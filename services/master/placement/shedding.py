"""Which requests a fleet refuses first while it cannot serve all within their objectives: those
that would take most of its time, as several others are served in the time of one of them."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from protocol.placement import ScheduleRequest
from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.pool import Pool
from services.master.placement.objectives import has_spare_workers
from services.master.placement.refusals import TooLarge, TooLate

_REMEMBERED = 256  # requests, by which is judged who is large
_AGAIN = 16  # requests until the limit is found anew
_FEWEST = 32  # requests below which nobody is large
_UP = 0.02  # of the requests that are not refused: so many more are, with each that is late
_DOWN = 0.0035  # of all: so many fewer are refused, with each that is in time
_MOST = 0.95  # share at the most
_SAME = 1e-6  # by which sizes may differ and be the same
_RETRY_S = 5.0


class Shedding:
    """Of all models; without --refuse-first largest nobody is refused here."""

    def __init__(self, config: MasterConfig) -> None:
        self._config = config
        self._sheds = config.refuse_first == "largest" and config.queue_policy == "refuse"
        self._models: dict[str, SheddingOfModel] = {}

    def check(self, fleet: Fleet, request: ScheduleRequest) -> None:
        """A request has come. `TooLarge` if it is one of the largest, while these are refused."""
        if self._sheds and (request.ttft_slo_s or request.tpot_slo_s):
            found = self._models.setdefault(fleet.model, SheddingOfModel(self._config))
            found.check(fleet, request)

    def refused(self, model: str, error: Exception) -> None:
        """A request got an error in place of a placement."""
        if model in self._models and isinstance(error, TooLate) and not isinstance(error, TooLarge):
            self._models[model].late()

    def placed(self, model: str) -> None:
        """A request has got workers."""
        if model in self._models:
            self._models[model].in_time()

    def shares(self) -> dict[str, float]:
        """By model: of its requests, the largest, that are refused now."""
        return {model: found.share for model, found in self._models.items()}


class SheddingOfModel:
    """Of one model. `share`: of all requests, the largest, that are refused now. It grows with
    every request that is late, and falls with those that are in time."""

    def __init__(self, config: MasterConfig) -> None:
        self.share = 0.0
        self._config = config
        self._works: deque[Floats] = deque(maxlen=_REMEMBERED)  # [4] each
        self._limit_ms = math.inf
        # Of the moment at which the limit was found: sizes at other rates would not compare.
        self._prices = np.zeros(4)
        self._come = 0

    def check(self, fleet: Fleet, request: ScheduleRequest) -> None:
        """As `Shedding.check`."""
        work = work_of(request, self._config.expected_tokens)
        self._works.append(work)
        self._come += 1
        if self._come % _AGAIN == 0:
            self._prices = prices(fleet)
            sizes = np.array(self._works) @ self._prices
            self._limit_ms = float(np.quantile(sizes, 1.0 - self.share, method="higher"))
        if self.share < 1.0 / _REMEMBERED or len(self._works) < _FEWEST:
            return
        # Those of one size are served all, or wait and are late.
        if float(work @ self._prices) > (1.0 + _SAME) * self._limit_ms and not has_spare_workers(
            fleet
        ):
            raise TooLarge(
                "more is asked than can be served in time, and this request takes longer than"
                f" {1.0 - self.share:.0%} of the others",
                retry_after_s=_RETRY_S,
            )

    def late(self) -> None:
        """A request cannot keep its objective, and was not refused for its size."""
        self.share = min(_MOST, self.share + _UP * (1.0 - self.share))

    def in_time(self) -> None:
        """One was placed within its objective."""
        self.share = max(0.0, self.share - _DOWN)


def work_of(request: ScheduleRequest, expected_tokens: int) -> Floats:
    """Tokens of a request's pictures and of its prompt, tokens of its answer as far as is expected,
    and those times the prompt's. Caches may hold some of it. [4]"""
    new = min(request.max_tokens or expected_tokens, expected_tokens)
    media, prompt = sum(item.tokens for item in request.items), request.prompt_tokens
    return np.array([media, prompt, new, new * prompt], dtype=np.float64)


def prices(fleet: Fleet) -> Floats:
    """Mean ms of the workers that are up for each unit of `work_of`. [4]"""
    pools = fleet.pools
    prefill, decode = (pools[kind] if pools[kind].able else pools["combined"]
                       for kind in ("prefill", "decode"))  # fmt: skip
    encode = pools["encode"] if pools["encode"].able else prefill
    return np.array(
        [
            _mean(encode, encode.token_ms),
            _mean(prefill, prefill.token_ms),
            _mean(decode, decode.step_request_ms),
            _mean(decode, decode.step_context_ms),
        ]
    )


def _mean(pool: Pool, column: Floats) -> float:
    able = column[pool.penalty == 0.0]
    return float(able.mean()) if len(able) else 0.0
