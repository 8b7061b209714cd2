"""What the log is told of a fleet: its workers' states, and mistakes in how they were set up.

Mistakes are found when workers come, not by users.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from protocol.logs import worker_line
from protocol.refs import fits
from proxy.fleet.fleet import Fleet
from proxy.fleet.model_mistakes import about_own_models, strangers
from proxy.fleet.worker import Instance

logger = logging.getLogger(__name__)
_BAD = ("down", "frozen", "avoided")
_SEE_EC = "(model@weights:dtype:transport; see --model, --dtype, --ec-transfer-config)"
_KV, _EC = attrgetter("kv_compatibility"), attrgetter("ec_compatibility")
_Kind = Callable[[Instance], str]


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
        *_unpaired_kv(prefill, decode),
        *_unpaired_ec(encode, prefill or decode),
        *strangers([*encode, *prefill, *decode]),
    ]


def _unpaired_kv(prefill: Sequence[Instance], decode: Sequence[Instance]) -> Iterator[str]:
    """A sentence for each worker whose KV none of its partners can exchange with it."""
    for workers, partners, role, way in (
        (prefill, decode, "decode", "to"),
        (decode, prefill, "prefill", "from"),
    ):
        for worker in _unpaired(workers, partners, _KV):
            yield (
                f"{worker.role} worker {worker.url} can hand no KV {way} any {role} worker: its KV "
                f"is {worker.kv_compatibility}, theirs {', '.join(_kinds(partners, _KV))} "
                "(model@weights:layout:transport; see --dtype, --kv-cache-dtype, --block-size, "
                "--kv-transfer-config)"
            )


def _unpaired_ec(encoders: Sequence[Instance], readers: Sequence[Instance]) -> Iterator[str]:
    """A sentence for each worker that can read no encoder's embeddings; then for each encoder whose
    embeddings no reader can read, unless no reader can read any."""
    blind = _unpaired(readers, encoders, _EC)
    for worker in blind:
        yield (
            f"{worker.role} worker {worker.url} can read no encode worker's embeddings: its EC is "
            f"{worker.ec_compatibility}, that of {_described(encoders)} {_SEE_EC}"
        )
    if len(blind) < len(readers):
        for encoder in _unpaired(encoders, readers, _EC):
            yield (
                f"encode worker {encoder.url} makes embeddings that no worker can read: its EC is "
                f"{encoder.ec_compatibility}, that of {_described(readers)} {_SEE_EC}"
            )


def _kinds(workers: Sequence[Instance], kind: _Kind) -> list[str]:
    return sorted({kind(worker) for worker in workers})


def _described(workers: Sequence[Instance]) -> str:
    """The workers by the kind of their EC."""
    return ", ".join(
        f"{' and '.join(w.url for w in workers if w.ec_compatibility == kind)} is {kind}"
        for kind in _kinds(workers, _EC)
    )


def _unpaired(
    workers: Sequence[Instance], partners: Sequence[Instance], kind: _Kind
) -> list[Instance]:
    """Workers that fit none of their partners, where there are any."""
    kinds = _kinds(partners, kind)
    if not kinds:
        return []
    return [worker for worker in workers if not any(fits(kind(worker), one) for one in kinds)]


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
            logger.info("this mistake is mended: %s", mistake)
        self._known = found
