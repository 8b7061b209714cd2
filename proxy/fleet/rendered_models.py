"""The workers of each model that a proxy renders for, where it renders for several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proxy.fleet.served_models import ServedModels, adapters_of
from proxy.fleet.worker import Instance


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
        found = (self._first.get(name, "") for name in (model, *sorted(aliases)))
        return next(filter(None, found), "")

    def look(self, workers: Iterable[Instance]) -> None:
        """Once each has been judged by `named`."""
        workers = list(workers)
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
