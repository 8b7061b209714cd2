"""Workers that serve another model than this proxy was told, or than the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from proxy.fleet.fleet import Fleet
from proxy.fleet.own_model import OwnModel, models_of
from proxy.fleet.worker import Instance


def about_own_models(fleet: Fleet) -> list[str]:
    """Where the proxy's own --model and --served-model-name are not what the workers serve."""
    found: list[str] = []
    for own in fleet.own.all:
        rendered = own.names[0] if fleet.own.several else ""
        computing = fleet.computing(rendered)
        found += [*_misfits(own, computing), *_other_weights(fleet, own, computing)]
    return [*found, *(_unserved_of_several(fleet) if fleet.own.several else _unserved(fleet))]


def _misfits(own: OwnModel, computing: Sequence[Instance]) -> list[str]:
    """One sentence for all, as one flag mends it."""
    workers = [worker for worker in computing if worker.misfit]
    if not workers:
        return []
    return [
        f"this proxy renders with the tokenizer of --model {own.weights} ({own.tokenizer[:12]}), "
        f"{_with_tokenizers(workers)} another: they get none of its requests; start the proxy "
        f"with the workers' --model ({', '.join(models_of(workers))})"
    ]


def _with_tokenizers(workers: Sequence[Instance]) -> str:
    return " and ".join(
        f"{worker.role} worker {worker.url} ({worker.tokenizer[:12]})" for worker in workers
    ) + (" has" if len(workers) == 1 else " have")


def _other_weights(fleet: Fleet, own: OwnModel, computing: Sequence[Instance]) -> list[str]:
    """Where no worker at all has the proxy's weights: while they change, some have."""
    served = sorted({one.revision for one in computing if one.revision and not one.misfit})
    if not own.revision or fleet.relayed == "all" or not served or own.revision in served:
        return []
    weights = ", ".join(name[:12] for name in served)
    return [
        f"this proxy's --model {own.weights} has the weights {own.revision[:12]}, the workers "
        f"serve {', '.join(models_of(computing))} with {weights}: a master finds no cached prefix "
        "for its requests (start the proxy with the workers' --model)"
    ]


def _unserved(fleet: Fleet) -> list[str]:
    """No worker knows the proxy's names, and of several models none can be what they stand for."""
    (own,), served = fleet.own.all, fleet.unserved
    if not (own.tokenizer or served):  # a proxy that only relays
        known = {name for worker in fleet.all() for name in worker.models}
        models = models_of(fleet.all())
        served = tuple(models) if len(models) > 1 and known.isdisjoint(own.names) else ()
    if not (own.names and served):
        return []
    return [own.unserved(served)]


def _unserved_of_several(fleet: Fleet) -> list[str]:
    """Of the models that the proxy renders for those that no worker serves; and workers of its
    lists that serve none of them."""
    served = {worker.rendered for worker in fleet.all()}
    models = [
        own.unserved(fleet.unserved)
        if fleet.unserved
        else f"no worker serves {' or '.join(own.names)} (see --model, --served-model-name)"
        for own in fleet.own.all
        if own.names[0] not in served
    ]
    workers = [
        f"{one.role} worker {one.url} serves {one.model}, which no model of this proxy is called"
        " (see --served-model-name)"
        for one in fleet.all()
        if one.model and not one.rendered
    ]
    return models + workers


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
