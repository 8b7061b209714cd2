"""Any family of transformers is served token by token as `generate()` has it, or refused at the
start by name. `python -m tests.support.random_families` says it of all there are."""

from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.errors import ConfigError
from services.engine.model.language import Inputs, LanguageModel
from services.engine.model.probe import window_of
from services.engine.model.trial import prompts, worst_error
from tests.support.random_families import built, expected, served, verdict

SERVED = (
    "apertus", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm4",
    "gpt_neox", "gpt_oss", "granite", "helium", "llama", "ministral", "mistral", "mixtral", "olmo2",
    "olmo3", "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "seed_oss", "smollm3", "starcoder2",
)  # fmt: skip
REFUSED = {
    "bert": "neither causal nor a window",
    "bloom": "use attention with a KV cache",
    "diffllama": "calls attention 2 times",
    "mamba": "linear_attention",
    "moshi": "its cache keeps 8",
    "nemotron": "does not pass on",
    "stablelm": "does not pass on",
}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
_LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
}  # fmt: skip
LAYERS = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize("family", SERVED)
def test_what_is_served_is_token_equal(family: str, tmp_path: Path) -> None:
    assert verdict(family, tmp_path) == "equal"


@pytest.mark.parametrize(("family", "reason"), REFUSED.items())
def test_what_cannot_be_served_is_refused_by_name(family: str, reason: str, tmp_path: Path) -> None:
    found = verdict(family, tmp_path)
    assert found.startswith("refused: ")
    assert f"'{family}'" in found and reason in found


def test_a_window_that_only_the_mask_has_is_kept_to(tmp_path: Path) -> None:
    """Qwen2-MoE's layers do not tell attention of it."""
    model = built("qwen2_moe", use_sliding_window=True, layer_types=LAYERS)
    wide = built("qwen2_moe", use_sliding_window=False)
    assert expected(model) != expected(wide)
    assert served(model, tmp_path) == expected(model)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"rope_parameters": _DYNAMIC, "max_position_embeddings": 48}),
        ("phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 48}),
    ],
)
def test_positions_that_depend_on_the_longest_request_are_refused(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = built(family, **options)
    with pytest.raises(ConfigError, match=rf"--max-model-len 64: .*'{family}'.* at most 48 "):
        served(model, tmp_path)
    assert served(model, tmp_path, max_model_len=48) == expected(model)


def test_windows_of_masks() -> None:
    def causal(_b: Any, _h: Any, q: Any, kv: Any) -> Any:
        return kv <= q

    assert window_of(causal) == 0
    for size in (1, 2, 8, 4096):
        assert window_of(lambda b, h, q, kv, n=size: (kv <= q) & (kv > q - n)) == size
    assert window_of(lambda b, h, q, kv: q >= 0) == -1
    assert window_of(lambda b, h, q, kv: (kv <= q) & (kv // 8 == q // 8)) == -1
    assert window_of(lambda b, h, q, kv: (kv <= q) & (kv != 7)) == -1


def test_the_trial_tells_other_logits(tmp_path: Path) -> None:
    """A paged path that is off by a position, or by one token's KV, does not pass."""
    whole = built("llama")
    whole.save_pretrained(tmp_path)
    model = LanguageModel(tmp_path, torch.float32, "cpu")
    tokens = prompts(128, "cpu")
    layout = model.kv_layout(16)

    def run(ids: Any, positions: Any, batch: Any, shift: int = 0) -> torch.Tensor:
        rows = torch.arange(len(ids))
        turned = torch.where(positions > 10, positions + shift, positions)
        return model.forward(Inputs(model.embed(ids), turned[None], rows), batch)

    with torch.inference_mode():
        own = [whole(prompt[None]).logits[0] for prompt in tokens]
    right = worst_error(tokens, own, run, layout)
    wrong = worst_error(tokens, own, lambda *step: run(*step, shift=1), layout)
    assert right < 1e-4 < 0.01 < wrong
    assert worst_error(tokens, [own[0] * torch.nan, own[1] * torch.nan], run, layout) == torch.inf
