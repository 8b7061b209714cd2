"""By which names clients may ask for the model, or for an adapter of it."""

from __future__ import annotations

import time

from protocol.openai_answers import ModelCard, ModelList
from services.frontend.config import FrontendConfig


class ServedNames:
    """`adapters`: LoRA adapters that clients may name instead of the model, with their revisions;
    kept true by the process that has workers or is one."""

    def __init__(self, config: FrontendConfig, max_model_len: int) -> None:
        self._config = config
        self._max_model_len = max_model_len
        self._created = int(time.time())
        self.adapters: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a client may ask for this; the empty name is the model's."""
        return not name or name in self._config.names or name in self.adapters

    @property
    def all(self) -> tuple[str, ...]:
        """The model's names, then its adapters."""
        return (*self._config.names, *self.adapters)

    def cards(self) -> ModelList:
        """The answer to /v1/models."""
        names = self._config.names
        parents = dict.fromkeys(names) | dict.fromkeys(self.adapters, names[0])
        return ModelList(
            [
                ModelCard(
                    id=name,
                    created=self._created,
                    root=str(self._config.model),
                    parent=parent,
                    max_model_len=self._max_model_len,
                )
                for name, parent in parents.items()
            ]
        )
