"""The model of a language part: loaded, its kernels compiled, its decode steps recorded; and what
it says of requests before they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protocol.types import GenerateRequest, SamplingParams
from services.engine.attention.cpu_softmax import compile_ahead
from services.engine.attention.kv_cache import DTYPES, KVCache
from services.engine.config import EngineConfig
from services.engine.hardware import kv_codes_of
from services.engine.model.adapters import Adapter
from services.engine.model.decode_graphs import Capture, DecodeGraphs
from services.engine.model.fused_layers import ops_for
from services.engine.model.language import LanguageModel
from services.engine.model.positions import Positions, mrope_positions, text_positions
from services.engine.model.runner import Runner
from services.engine.model.text_encoder import EncoderRunner, TextEncoder
from services.engine.model.warm_up import warm_up, warm_up_cpu
from services.engine.sampling.grammar import Grammars
from services.engine.sampling.pooler import VectorPooler
from services.engine.sampling.sampler import Sampler
from services.engine.sampling.token_rules import restricted
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.request import Constraint
from services.engine.scheduling.seams import Drafter


def language_model_of(config: EngineConfig) -> LanguageModel | TextEncoder:
    dtype = DTYPES[config.dtype]
    if config.pooler is not None and config.pooler.encoder:
        return TextEncoder(Path(config.model_dir), dtype, config.device, config.pooler)
    return LanguageModel(
        Path(config.model_dir),
        dtype,
        config.device,
        config.weight_layout,
        fused=ops_for(config.device, dtype) if config.fused_kernels else None,
        max_loras=config.max_loras,
        max_lora_rank=config.max_lora_rank,
        quantization=config.quantization,
        kv_codes=kv_codes_of(config),
        pooler=config.pooler,
    )


def prepared(
    model: LanguageModel | TextEncoder,
    cache: KVCache,
    capture: Capture | None,
    reserved: int,
    most: int,
    longest: int,
) -> DecodeGraphs | None:
    """Compile kernels, and record decode steps of up to `most` rows, in block `reserved`."""
    if isinstance(model, TextEncoder):
        return None
    if model.device != "cpu":
        warm_up(model, cache, reserved, longest)
    else:
        compile_ahead(model.dtype)
        warm_up_cpu(model, cache.layout)
    if capture is None:
        return None
    return DecodeGraphs.recorded(model, cache, capture, reserved, most, longest)


def runner_of(
    config: EngineConfig,
    model: LanguageModel | TextEncoder,
    cache: KVCache,
    embeddings: EmbeddingCache,
    graphs: DecodeGraphs | None,
    drafter: Drafter | None,
) -> Runner | EncoderRunner:
    pooler = VectorPooler(config.pooler) if config.pooler is not None else None
    if isinstance(model, TextEncoder):
        assert pooler is not None
        return EncoderRunner(model, pooler)
    sampler = pooler or Sampler(config.eos_token_ids)
    return Runner(model, cache, embeddings, sampler, graphs, drafter)


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
        """See `Adapters.find`; None for any name without adapters."""
        adapters, name = self._model.adapters, source.model
        if adapters is None or not name or name in self._names:
            return None
        return adapters.find(name, source.adapter_revision)
