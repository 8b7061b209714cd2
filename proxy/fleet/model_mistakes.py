"""Workers that serve another model than this proxy was told, or than the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from proxy.fleet.fleet import Fleet
from proxy.fleet.own_model import models_of
from proxy.fleet.worker import Instance


def about_own_model(fleet: Fleet) -> list[str]:
    """Where the proxy's own --model and --served-model-name are not what the workers serve."""
    return [*_misfits(fleet), *_other_weights(fleet), *_unserved(fleet)]


def _misfits(fleet: Fleet) -> list[str]:
    """One sentence for all, as one flag mends it."""
    workers = [worker for worker in fleet.all() if worker.misfit]
    if not workers:
        return []
    own = fleet.own
    return [
        f"this proxy renders with the tokenizer of --model {own.weights} ({own.tokenizer[:12]}), "
        f"{_named(workers)} another: they get none of its requests; start the proxy "
        f"with the workers' --model ({models_of(workers)})"
    ]


def _named(workers: Sequence[Instance]) -> str:
    return " and ".join(
        f"{worker.role} worker {worker.url} ({worker.tokenizer[:12]})" for worker in workers
    ) + (" has" if len(workers) == 1 else " have")


def _other_weights(fleet: Fleet) -> list[str]:
    """Where no worker at all has the proxy's weights: while they change, some have."""
    own, computing = fleet.own, (*fleet.prefill, *fleet.decode)
    served = sorted({one.revision for one in computing if one.revision and not one.misfit})
    if not own.revision or fleet.relayed == "all" or not served or own.revision in served:
        return []
    weights = ", ".join(name[:12] for name in served)
    return [
        f"this proxy's --model {own.weights} has the weights {own.revision[:12]}, the workers "
        f"serve {models_of(computing)} with {weights}: a master finds no cached prefix for its "
        "requests (start the proxy with the workers' --model)"
    ]


def _unserved(fleet: Fleet) -> list[str]:
    """No worker knows the proxy's names, and of several models none can be what they stand for."""
    names, served = fleet.own.names, fleet.unserved
    if not (fleet.own.tokenizer or served):  # a proxy that only relays
        known = {name for worker in fleet.all() for name in worker.models}
        models = sorted({worker.model for worker in fleet.all() if worker.model})
        served = tuple(models) if len(models) > 1 and known.isdisjoint(names) else ()
    if not (names and served):
        return []
    return [fleet.own.unserved(served)]


def strangers(workers: Sequence[Instance]) -> list[str]:
    """Workers with other weights than most have, as one request would meet both."""
    known = [worker for worker in workers if worker.revision]
    counts = Counter((worker.model, worker.revision) for worker in known)
    if len(counts) < 2:
        return []
    (usual, _), *_ = counts.most_common(1)
    return [
        f"{worker.role} worker {worker.url} serves {worker.model} with weights "
        f"{worker.revision[:12]}, most workers {usual[0]} with {usual[1][:12]} (see --model, "
        "--revision)"
        for worker in known
        if (worker.model, worker.revision) != usual
    ]
