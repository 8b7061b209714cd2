"""What is wrong with a fleet, found when its workers come, not by users."""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import attrgetter

from proxy.fleet.fleet import Fleet
from proxy.fleet.model_mistakes import about_own_models, strangers
from proxy.fleet.pair_mistakes import unpaired_ec, unpaired_kv
from proxy.fleet.worker import Instance

logger = logging.getLogger(__name__)


def mistakes_of(fleet: Fleet) -> list[str]:
    """A sentence for each mistake, which names the workers and the flags to look at."""
    found = about_own_models(fleet)
    if fleet.models.rendered:
        return found + _of_each(fleet, attrgetter("rendered"))
    if fleet.watched and fleet.models.several:
        return found + _of_each(fleet, attrgetter("model"))
    return found + _among(fleet.encode, fleet.prefill, fleet.decode)


def _of_each(fleet: Fleet, model_of: Callable[[Instance], str]) -> list[str]:
    """Of the workers of one model after the other."""
    found: list[str] = []
    groups = (fleet.encode, fleet.prefill, fleet.decode)
    for model in sorted({model_of(worker) for worker in fleet.all()} - {""}):
        found += _among(*([one for one in group if model_of(one) == model] for group in groups))
    return found


def _among(encode: list[Instance], prefill: list[Instance], decode: list[Instance]) -> list[str]:
    """Of workers that one request may meet."""
    return [
        *unpaired_kv(prefill, decode),
        *unpaired_ec(encode, prefill or decode),
        *strangers([*encode, *prefill, *decode]),
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
