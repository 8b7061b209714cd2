"""Workers of one fleet that cannot serve a request together: found when they come, not by users."""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import attrgetter

from protocol.refs import compatibility_of
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance

logger = logging.getLogger(__name__)


def mistakes_of(fleet: Fleet) -> list[str]:
    """A sentence for each mistake, which names the workers and the flags to look at."""
    if fleet.models.rendered:
        return _of_each(fleet, attrgetter("rendered")) + _unserved(fleet)
    if fleet.watched and fleet.models.several:
        return _of_each(fleet, attrgetter("model"))
    return _among(fleet.prefill, fleet.decode, fleet.all())


def _of_each(fleet: Fleet, model_of: Callable[[Instance], str]) -> list[str]:
    """Of the workers of one model after the other."""
    found: list[str] = []
    groups = (fleet.prefill, fleet.decode, fleet.all())
    for model in sorted({model_of(worker) for worker in fleet.all()} - {""}):
        found += _among(*([one for one in group if model_of(one) == model] for group in groups))
    return found


def _unserved(fleet: Fleet) -> list[str]:
    """Models that no worker serves, and workers of no model, among several that are rendered."""
    served = {worker.rendered for worker in fleet.all()}
    models = [
        f"no worker serves {one} (see --model, --served-model-name)"
        for one in fleet.models.rendered
        if one not in served
    ]
    workers = [
        f"{one.role} worker {one.url} serves {one.model}, which no model of this proxy is called"
        " (see --served-model-name)"
        for one in fleet.all()
        if one.model and not one.rendered
    ]
    return models + workers


def _among(prefill: list[Instance], decode: list[Instance], workers: list[Instance]) -> list[str]:
    """Of workers that one request may meet."""
    found = _unpaired(prefill, decode, "decode", "to")
    found += _unpaired(decode, prefill, "prefill", "from")
    return found + _strangers(workers)


def _unpaired(workers: list[Instance], partners: list[Instance], role: str, way: str) -> list[str]:
    """Workers whose KV none of their partners can exchange with them."""
    kinds = {compatibility_of(partner.kv_endpoint) for partner in partners}
    if not kinds or "" in kinds:
        return []
    return [
        f"{worker.role} worker {worker.url} can hand no KV {way} any {role} worker: its KV is "
        f"{kind}, theirs {', '.join(sorted(kinds))} (model@weights:layout:transport; see "
        "--dtype, --kv-cache-dtype, --block-size, --kv-transfer-config)"
        for worker in workers
        if (kind := compatibility_of(worker.kv_endpoint)) and kind not in kinds
    ]


def _strangers(workers: list[Instance]) -> list[str]:
    """Workers with other weights than most have, as one request would meet both."""
    known = [worker for worker in workers if worker.revision]
    counts: dict[tuple[str, str], int] = {}
    for worker in known:
        weights = worker.model, worker.revision
        counts[weights] = counts.get(weights, 0) + 1
    if len(counts) < 2:
        return []
    usual = max(counts, key=lambda weights: counts[weights])
    return [
        f"{worker.role} worker {worker.url} serves {worker.model} with weights "
        f"{worker.revision[:12]}, most workers {usual[0]} with {usual[1][:12]} (see --model, "
        "--revision)"
        for worker in known
        if (worker.model, worker.revision) != usual
    ]


class MistakeLog:
    """Writes each mistake to the log once, and again only if it has been mended in between."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: frozenset[str] = frozenset()

    def look(self) -> None:
        """To be called when the fleet may have changed."""
        found = frozenset(mistakes_of(self._fleet))
        for mistake in sorted(found - self._known):
            logger.error("%s", mistake)
        for mistake in sorted(self._known - found):
            logger.info("mended: %s", mistake)
        self._known = found
