"""The models that one server renders for, found by the names that requests give."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ConfigError, ModelNotFound
from protocol.openai_answers import ModelCard, ModelList
from services.frontend.config import FrontendConfig
from services.frontend.media.store import MediaStore
from services.frontend.render import Frontend


class Models:
    """`all` has a frontend for each model, in order. The first model is meant where a request names
    none. A model is known by its first name to the parts of the server."""

    def __init__(self, frontends: Sequence[Frontend]) -> None:
        """`ConfigError` if a name stands for two models."""
        self.all = tuple(frontends)
        self.first = self.all[0]
        self._by_name: dict[str, Frontend] = {}
        for frontend in self.all:
            for name in frontend.config.names:
                if self._by_name.setdefault(name, frontend) is not frontend:
                    raise ConfigError(f"--served-model-name: {name} names two models")

    @staticmethod
    def load(configs: Sequence[FrontendConfig]) -> Models:
        """Read the folders of all models, which share the memory for media. `ConfigError` says what
        is wrong with one."""
        media = configs[0].media
        store = MediaStore(media.memory_bytes, media.spill_folder)
        return Models([Frontend.load(config, store) for config in configs])

    async def close(self) -> None:
        for frontend in self.all:
            await frontend.close()

    @property
    def several(self) -> bool:
        return len(self.all) > 1

    def of(self, name: str | None) -> Frontend:
        """The frontend for a request that names a model or a LoRA adapter. A frontend judges names
        itself where it is the only one, otherwise `ModelNotFound`."""
        # With one model its own frontend refuses, and knows adapters that came later.
        if not (name and self.several):
            return self.first
        found = self._by_name.get(name) or self._with_adapter(name)
        if found is None:
            raise ModelNotFound(f"model: '{name[:256]}' is not served here", param="model")
        return found

    def known(self, model: str) -> Frontend:
        """The frontend of a model by its first name, "" for the first model."""
        return self._by_name[model] if model else self.first

    def _with_adapter(self, name: str) -> Frontend | None:
        return next((one for one in self.all if name in one.served.adapters), None)

    @property
    def names(self) -> tuple[str, ...]:
        """All that a client may name: models, aliases and adapters."""
        return tuple(name for frontend in self.all for name in frontend.served.all)

    def cards(self) -> ModelList:
        """The answer to /v1/models."""
        return ModelList([card for frontend in self.all for card in frontend.served.cards().data])

    def card(self, name: str) -> ModelCard:
        """The answer to /v1/models/NAME; `ModelNotFound` if there is none."""
        for card in self.cards().data:
            if card.id == name:
                return card
        raise ModelNotFound(f"model: '{name[:256]}' is not served here", param="model")
