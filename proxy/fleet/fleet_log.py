"""What the log is told of a fleet: its workers' states, and mistakes in how they were set up.

Mistakes are found when workers come, not by users.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import attrgetter

from protocol.logs import worker_line
from proxy.fleet.fleet import Fleet
from proxy.fleet.model_mistakes import about_own_models, strangers
from proxy.fleet.pairing import unpaired_ec, unpaired_kv
from proxy.fleet.worker import Instance

logger = logging.getLogger(__name__)
_BAD = ("down", "frozen", "avoided")


def state_of(instance: Instance) -> str:
    """up; draining: it finishes what it has; avoided: calls failed there, so it gets none for a
    while; frozen: it has been silent for so long that its calls are given up; down."""
    if not instance.up:
        return "frozen" if instance.lost else "down"
    if not instance.breaker.closed:
        return "avoided"
    return "draining" if instance.draining else "up"


class StateLog:
    """The state of each worker as it was written last."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[Instance, str] = {}

    def look(self) -> None:
        """To be called when workers may have changed."""
        known, self._known = self._known, {one: state_of(one) for one in self._fleet.all()}
        for instance, state in self._known.items():
            if state != known.get(instance):
                level = logging.WARNING if state in _BAD else logging.INFO
                cause = _cause(instance, state)
                worker_line(logger, level, state, instance.role, instance.url, cause)


def _cause(instance: Instance, state: str) -> str:
    if state == "avoided":
        return f"{instance.breaker.failures} calls in a row failed (--breaker-failures)"
    return "" if state in ("up", "draining") else instance.cause


def mistakes_of(fleet: Fleet) -> list[str]:
    """A sentence for each mistake, which names the workers and the flags to look at."""
    found = about_own_models(fleet)
    if fleet.models.rendered:
        return found + _model_by_model(fleet, attrgetter("rendered"))
    if fleet.watched and fleet.models.several:
        return found + _model_by_model(fleet, attrgetter("model"))
    return found + _among(fleet.encode, fleet.prefill, fleet.decode)


def _model_by_model(fleet: Fleet, model_of: Callable[[Instance], str]) -> list[str]:
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
