"""Which model is meant by an alias or by the name of an adapter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.errors import ModelNotFound, Unavailable
from protocol.registry import InstanceInfo
from services.master.fleet.fleet import Fleet


@dataclass
class ModelNames:
    """Names that workers give, with how many of each model's give them."""

    _aliases: dict[str, Counter[str]] = field(default_factory=dict)
    _adapters: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, info: InstanceInfo) -> None:
        for table, names in ((self._aliases, info.aliases), (self._adapters, info.adapters)):
            for name in set(names):
                table.setdefault(name, Counter())[info.model] += 1

    def remove(self, info: InstanceInfo) -> None:
        for table, names in ((self._aliases, info.aliases), (self._adapters, info.adapters)):
            for name in set(names):
                models = table[name]
                models[info.model] -= 1
                if not models[info.model]:
                    del models[info.model]
                if not models:
                    del table[name]

    def resolve(self, name: str, fleets: Mapping[str, Fleet]) -> tuple[Fleet, str]:
        """(the fleet that is meant, the adapter or ""); `fleets` by model. A model's own name
        counts before an alias, an alias before an adapter; of two models the one whose workers came
        first. Empty names the only fleet that has workers. `ModelNotFound` otherwise, `Unavailable`
        if there is no worker yet to tell what is meant."""
        found, adapter = (fleets.get(name) if name else _only(fleets)), ""
        # A fleet may outlast its workers, while others give its name as an alias.
        if found is None or (name and not found.by_slot):
            model, adapter = self._find(name)
            found = fleets.get(model, found)
        if found is None:
            raise ModelNotFound(f"model: no worker serves '{name}'", param="model")
        return found, adapter

    def _find(self, name: str) -> tuple[str, str]:
        """(model, adapter), "" for none."""
        for table, adapter in ((self._aliases, ""), (self._adapters, name)):
            if name in table:
                # A counter keeps the order of insertion: the model whose workers came first.
                return next(iter(table[name])), adapter
        return "", ""


def _only(fleets: Mapping[str, Fleet]) -> Fleet | None:
    living = [fleet for fleet in fleets.values() if fleet.by_slot]
    if len(living) > 1:
        raise ModelNotFound("model: several models are served; name one", param="model")
    if not living and len(fleets) > 1:
        raise Unavailable("no worker is registered", code="no_worker", retry_after_s=1.0)
    return next(iter(living or fleets.values()), None)
