"""Which models the workers of one fleet serve, and which workers a request's name means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from protocol.errors import ModelNotFound
from protocol.types import Role
from proxy.fleet.worker import Instance


class ServedModels:
    """Kept true by the fleet. A name is a model's own, an alias, or that of a LoRA adapter; of two
    models with one name the one whose own it is is meant, else the first. `rendered`: first names
    of the models that this proxy renders for, if they are several (`RenderedModels`)."""

    rendered: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._models: dict[str, str] = {}  # by name
        self.adapters: dict[str, str] = {}  # LoRA adapters with their revisions, "" if unknown
        self.several = False

    def look(self, workers: Iterable[Instance]) -> None:
        """The workers of the fleet may have changed."""
        found: dict[str, str] = {}
        known = [one for one in workers if one.model]
        for worker in known:
            for name in sorted(worker.models):
                found.setdefault(name, worker.model)
        self._models = {**found, **{worker.model: worker.model for worker in known}}
        self.adapters = adapters_of(known)
        self.several = len(set(self._models.values())) > 1

    def named(self, model: str, aliases: Iterable[str]) -> str:
        """The first name of the model that a worker serves which calls it so, of several that this
        proxy renders for; "" for none."""
        return ""

    def meant(self, name: str | None) -> str:
        """The first name of the model that a request names, of several that this proxy renders for;
        "" for none."""
        return ""

    def of(self, name: str) -> str:
        """The model that a request's name stands for, "" where all workers serve one: they judge
        names themselves. `ModelNotFound` if none serves it, or if several could be meant."""
        if not self.several:
            return ""
        if not name:
            served = ", ".join(sorted(set(self._models.values())))
            raise ModelNotFound(f"model: several are served, name one: {served}", param="model")
        if name not in self._models:
            raise ModelNotFound(f"model: no worker serves '{name[:256]}'", param="model")
        return self._models[name]

    def adapters_with(self, model: str) -> Mapping[str, str]:
        """LoRA adapters of a model by its first name, with their revisions: all, where the proxy
        renders for no other."""
        return self.adapters

    def has_any(self, workers: Sequence[Instance], name: str) -> bool:
        """Whether one of them serves what a request names, well or not."""
        return bool(self.serving(workers, name) if self.several else workers)

    def serving(self, workers: Sequence[Instance], name: str) -> list[Instance]:
        """Those that serve what a request names. Adapters are the language model's: encode workers
        do not list them."""
        if not self.several:
            return self._having(workers, name)
        model = self.of(name)
        return [
            one
            for one in workers
            if one.model == model and (one.role == "encode" or name in one.models)
        ]

    def _having(self, workers: Sequence[Instance], name: str) -> list[Instance]:
        """Of workers of one model, those that have the adapter that a request names: in the same
        weights, since they hand KV to one another."""
        revision = self.adapters.get(name)
        if revision is None:
            return list(workers)
        return [
            one for one in workers if one.role == "encode" or one.adapters.get(name) == revision
        ]


def adapters_of(workers: Sequence[Instance]) -> dict[str, str]:
    """LoRA adapters with the revision that counts: of those that workers which take requests have,
    one that most stages have, the first one of several; else any worker's."""
    found: dict[str, dict[str, set[Role]]] = {}
    able = [one for one in workers if one.up and not one.draining]
    for one in able:
        for name, revision in one.adapters.items():
            found.setdefault(name, {}).setdefault(revision, set()).add(one.role)
    others = {name: revision for one in workers for name, revision in one.adapters.items()}
    stages = {name: max(by, key=lambda revision: len(by[revision])) for name, by in found.items()}
    return {**others, **stages}


class RenderedModels(ServedModels):
    """`names` has those of each model; the first one stands for it. A worker serves the model whose
    names its own name of the model is among, or else one of its aliases. It may call an adapter by
    a name that another model's workers use too: then the first of these models is meant."""

    def __init__(self, names: Sequence[Sequence[str]]) -> None:
        super().__init__()
        self.rendered = tuple(some[0] for some in names)
        self.several = True
        self._first = {name: some[0] for some in names for name in some}
        self._with_adapter: dict[str, str] = {}  # the first name of its model by each adapter
        self._workers_names: dict[str, str] = {}  # by first name

    def named(self, model: str, aliases: Iterable[str]) -> str:
        # Sorted: the order of a set differs between the processes of one proxy.
        found = (self._first.get(name, "") for name in (model, *sorted(aliases)))
        return next(filter(None, found), "")

    def look(self, workers: Iterable[Instance]) -> None:
        """Once each has been judged by `named`."""
        workers = list(workers)
        # Backwards: where workers call one model by several names, the first worker's is kept.
        self._workers_names = {one.rendered: one.model for one in reversed(workers)}
        self.adapters, self._with_adapter = {}, {}
        for model in self.rendered:
            found = adapters_of([one for one in workers if one.rendered == model])
            for name, revision in found.items():
                if name not in self._first and name not in self.adapters:
                    self.adapters[name], self._with_adapter[name] = revision, model

    def meant(self, name: str | None) -> str:
        return self.of(name) if name else ""

    def of(self, name: str) -> str:
        """The first name of the model that a request's name stands for, "" for none of them."""
        return self._first.get(name) or self._with_adapter.get(name, "")

    def workers_name(self, name: str) -> str:
        """How workers call the model that has this first name; any other name is theirs already."""
        return self._workers_names.get(name, name)

    def adapters_with(self, model: str) -> dict[str, str]:
        """Those of a model by its first name, with their revisions."""
        return {
            name: revision
            for name, revision in self.adapters.items()
            if self._with_adapter[name] == model
        }

    def serving(self, workers: Sequence[Instance], name: str) -> list[Instance]:
        model = self.of(name)
        return self._having([one for one in workers if model and one.rendered == model], name)
