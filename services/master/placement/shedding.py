"""Load shedding by size: while a fleet cannot keep the objectives of all requests it refuses the
largest ones, as it can serve several others in the time of one of them."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

import numpy as np

from protocol.placement import ScheduleRequest
from services.admission.ticket import DEFAULT_PRIORITY
from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.pool import Pool
from services.master.placement.objectives import has_spare_workers
from services.master.placement.refusals import TooLarge, TooLate

_WINDOW = 256  # latest requests, whose sizes are compared
_UPDATE_EVERY = 16  # requests between two updates of the size limit
_MIN_REQUESTS = 32  # requests before any is refused
_UP = 0.02  # of the share still served: moves to the refused share with each late request
_DOWN = 0.0035  # by which the refused share falls with each request that is placed in time
_MAX_SHARE = 0.95  # of the requests, refused at most
_TOLERANCE = 1e-6  # relative difference below which two sizes are equal
_RETRY_S = 5.0


class Shedding:
    """Keeps a `ModelShedding` for each model. Refuses nothing unless the flags are
    --refuse-first largest and --queue-policy refuse."""

    def __init__(self, config: MasterConfig) -> None:
        self._config = config
        self._sheds = config.refuse_first == "largest" and config.queue_policy == "refuse"
        self._models: dict[str, ModelShedding] = {}

    def check(self, fleet: Fleet, request: ScheduleRequest) -> None:
        """Note a new request's size; raise `TooLarge` if the fleet refuses this size now.

        It always lets three kinds pass: requests without objectives, requests with more than the
        default priority, and retries, as their clients may have part of the answer.
        """
        priority = request.priority or DEFAULT_PRIORITY
        if not self._sheds or request.retry or priority > DEFAULT_PRIORITY:
            return
        if request.ttft_slo_s or request.tpot_slo_s:
            found = self._models.setdefault(fleet.model, ModelShedding(self._config))
            found.check(fleet, request)

    def refused(self, model: str, error: Exception) -> None:
        """The master answered a request with `error`; a late request raises the refused share."""
        if model in self._models and isinstance(error, TooLate) and not isinstance(error, TooLarge):
            self._models[model].late()

    def placed(self, model: str) -> None:
        """The master placed a request, which lowers the refused share."""
        if model in self._models:
            self._models[model].in_time()

    def forget(self, models: AbstractSet[str]) -> None:
        """Drop the state of all models but `models`, which the master knows."""
        for model in self._models.keys() - models:
            del self._models[model]

    def shares(self) -> dict[str, float]:
        """The refused share of each model, 0 to 1."""
        return {model: found.share for model, found in self._models.items()}


class ModelShedding:
    """Finds the size limit of one model. `share` (0 to 1) is the part of all requests that is
    refused, the largest ones; late requests raise it, requests placed in time lower it."""

    def __init__(self, config: MasterConfig) -> None:
        self.share = 0.0
        self._config = config
        # By request, as a proxy asks twice for one that has to wait. [4] each, see `work_of`
        self._works: dict[str, Floats] = {}
        self._limit_ms = math.inf
        # Kept between two updates: sizes reckoned at other rates do not compare with the limit.
        self._prices = np.zeros(4)
        self._arrived = 0

    def check(self, fleet: Fleet, request: ScheduleRequest) -> None:
        """As `Shedding.check`, of a request that may be refused."""
        work = work_of(request, self._config.expected_tokens)
        self._works[request.request_id] = work
        if len(self._works) > _WINDOW:
            del self._works[next(iter(self._works))]
        self._arrived += 1
        if self._arrived % _UPDATE_EVERY == 0:
            self._update(fleet)
        if self.share < 1.0 / _WINDOW or len(self._works) < _MIN_REQUESTS:
            return
        # Requests of one size all pass; those that cannot keep their objectives are late then.
        large = float(work @ self._prices) > (1.0 + _TOLERANCE) * self._limit_ms
        if large and not has_spare_workers(fleet):
            raise TooLarge(
                "the fleet cannot serve all requests in time and refuses the largest ones"
                f" (--refuse-first): this one takes longer than {1.0 - self.share:.0%} of them",
                retry_after_s=_RETRY_S,
            )

    def _update(self, fleet: Fleet) -> None:
        self._prices = prices(fleet)
        sizes = np.array([*self._works.values()]) @ self._prices
        self._limit_ms = float(np.quantile(sizes, 1.0 - self.share, method="higher"))

    def late(self) -> None:
        """The fleet cannot keep the objective of a request that passed `check`."""
        self.share = min(_MAX_SHARE, self.share + _UP * (1.0 - self.share))

    def in_time(self) -> None:
        """A request was placed, and is foreseen to keep its objective."""
        self.share = max(0.0, self.share - _DOWN)


def work_of(request: ScheduleRequest, expected_tokens: int) -> Floats:
    """What a request takes without any cache: tokens of its media, tokens of its prompt, expected
    tokens of its answer, and the product of the last two. float64 [4]"""
    new = min(request.max_tokens or expected_tokens, expected_tokens)
    media, prompt = sum(item.tokens for item in request.items), request.prompt_tokens
    return np.array([media, prompt, new, new * prompt], dtype=np.float64)


def prices(fleet: Fleet) -> Floats:
    """Milliseconds for each unit of `work_of`, the mean of the workers that are up. float64 [4]"""
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
