"""What guesses tokens for an engine, by its `--speculative-config`."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from protocol.errors import ConfigError
from services.engine.attention.kv_cache import DTYPES, KVCache, block_elements
from services.engine.config import EngineConfig
from services.engine.drafting.draft_model import DraftModel
from services.engine.drafting.prompt_lookup import PromptLookup
from services.engine.model.fused_layers import ops_for
from services.engine.model.language import LanguageModel
from services.engine.model.warm_up import warm_up, warm_up_cpu
from services.engine.scheduling.draft_budget import DraftBudget
from services.engine.scheduling.seams import Drafter


def draft_language_model(config: EngineConfig) -> LanguageModel | None:
    """The small model, None if none guesses. `ConfigError` if it writes other tokens than the
    large one."""
    guesses = config.speculation
    if guesses is None or not guesses.model:
        return None
    folder, dtype = Path(guesses.model), DTYPES[config.dtype]
    if not (folder / "config.json").is_file():
        raise ConfigError(f"--speculative-config: model: {folder} has no config.json")
    _check_tokens(Path(config.model_dir), folder)
    fused = ops_for(config.device, dtype) if config.fused_kernels else None
    try:
        return LanguageModel(folder, dtype, config.device, config.weight_layout, fused=fused)
    except ConfigError as error:
        raise ConfigError(f"--speculative-config: model: {error.message}") from error


def drafter_of(
    config: EngineConfig, draft: LanguageModel | None, num_blocks: int, vocabulary: int
) -> Drafter | None:
    """`draft`: of `draft_language_model`; `num_blocks` of the large model's pool, and `vocabulary`
    of its tokens."""
    guesses = config.speculation
    if guesses is None:
        return None
    if draft is None:
        return PromptLookup(guesses.prompt_lookup_min, guesses.prompt_lookup_max, vocabulary)
    layout = draft.kv_layout(config.block_size)
    # One block more for the steps that compile kernels.
    pool = torch.zeros(
        num_blocks + 1, block_elements(layout), dtype=draft.dtype, device=config.device
    )
    cache = KVCache(layout, pool)
    if config.device != "cpu":
        warm_up(draft, cache, num_blocks, min(config.max_model_len, num_blocks * config.block_size))
    else:
        warm_up_cpu(draft, layout)
    return DraftModel(draft, cache, vocabulary)


def draft_budget_of(config: EngineConfig) -> DraftBudget | None:
    """None if nothing is guessed."""
    guesses = config.speculation
    if guesses is None:
        return None
    tokens, requests = guesses.num_speculative_tokens, guesses.disable_by_batch_size
    return DraftBudget(tokens, requests, adaptive=guesses.adaptive)


def _check_tokens(large: Path, small: Path) -> None:
    files = [folder / "tokenizer.json" for folder in (large, small)]
    if not all(file.is_file() for file in files):
        return
    try:
        first, second = (Tokenizer.from_file(str(file)).get_vocab() for file in files)
    except Exception as error:  # the library raises nothing more special
        raise ConfigError(f"--speculative-config: model: {files[1]}: {error}") from error
    # Tokens of one alone do no harm: `DraftModel` guesses and reads no id that a model lacks.
    shared = first.keys() & second.keys()
    if not shared or any(first[token] != second[token] for token in shared):
        raise ConfigError(
            f"--speculative-config: model: {small} has another tokenizer than {large}"
        )
