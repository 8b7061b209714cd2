"""Which model is meant by an alias or by the name of an adapter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from protocol.registry import InstanceInfo


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

    def find(self, name: str) -> tuple[str, str]:
        """(model, adapter), "" for none."""
        for table, adapter in ((self._aliases, ""), (self._adapters, name)):
            if name in table:
                return next(iter(table[name])), adapter
        return "", ""
