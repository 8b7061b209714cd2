"""What a language model and its grammars say of requests before they run."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.types import GenerateRequest, SamplingParams
from services.engine.model.adapters import Adapter
from services.engine.model.language import LanguageModel
from services.engine.model.positions import Positions, mrope_positions, text_positions
from services.engine.model.text_encoder import TextEncoder
from services.engine.sampling.grammar import Grammars
from services.engine.sampling.token_rules import restricted
from services.engine.scheduling.request import Constraint


class ModelAdmission:
    """`services.engine.scheduling.seams.Admission` of a model that is loaded."""

    def __init__(
        self, model: LanguageModel | TextEncoder, grammars: Grammars, names: Sequence[str] = ()
    ) -> None:
        """`names`: those of the model itself."""
        self._model = model
        self._names = names
        self._grammars = grammars
        self.vocabulary = int(model.text_config.vocab_size)

    def positions(self, source: GenerateRequest) -> tuple[Positions, int]:
        """See `mrope_positions`; 0 for a model with one dimension."""
        length = len(source.token_ids)
        if not isinstance(self._model, TextEncoder) and self._model.uses_mrope:
            merge, per_second = self._model.merge_size, self._model.tokens_per_second
            return mrope_positions(length, source.mm_items, merge, per_second)
        return text_positions(length), 0

    def constraint(self, sampling: SamplingParams) -> Constraint | None:
        """See `Grammars.constraint`, `restricted`."""
        grammar = self._grammars.constraint(sampling.grammar)
        return restricted(grammar, sampling, self.vocabulary)

    def adapter(self, source: GenerateRequest) -> Adapter | None:
        """See `Adapters.find`; None without adapters, whatever the name."""
        adapters, name = self._model.adapters, source.model
        if adapters is None or not name or name in self._names:
            return None
        return adapters.find(name, source.adapter_revision)
