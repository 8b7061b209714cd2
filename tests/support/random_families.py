"""Models of any text family that transformers has, tiny and random, made from configurations alone.

`python -m tests.support.random_families [FAMILY...]` says of each, or of all, whether the engine
serves it and puts out what transformers does.
"""

import math
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from protocol.errors import ConfigError
from protocol.types import EncodeRequest, GenerateRequest, SamplingParams
from services.engine.config import EngineConfig
from services.engine.engine import Engine
from tests.support.engines import run

VOCABULARY = 128
LARGEST = 8_000_000  # parameters: a family whose defaults lead to more is left out
TOKENS = 8
WINDOW = 8
PROMPTS = (5, 19, 30)  # tokens: one within the window, two beyond it
_SIZES = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY, "sliding_window": WINDOW,
    "max_position_embeddings": 256, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "num_experts_per_tok": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1, "kv_lora_rank": 32,
    "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

HEADS = {"llama": "lm_head", "biogpt": "output_projection", "modernbert-decoder": "decoder"}
"""What families call the layer that makes logits."""


class Unbuilt(Exception):
    """transformers makes no small model of a family from sizes alone."""


def built(family: str, **options: Any) -> PreTrainedModel:
    """A model whose greedy output depends on its prompt; `options` are the configuration's."""
    try:
        config_class = CONFIG_MAPPING[family]
        known = {*config_class().to_dict(), *getattr(config_class, "attribute_map", {})}
        sizes = {name: value for name, value in _SIZES.items() if name in known}
        if "kv_lora_rank" in sizes:  # latent attention has as many keys as queries
            sizes["num_key_value_heads"] = sizes["num_attention_heads"]
        config = config_class(**{**sizes, **options})
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        if size > LARGEST:
            raise Unbuilt(f"{family}: {size} parameters")
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config).float().eval()
    except Unbuilt:
        raise
    except Exception as error:  # any error about sizes that the family cannot have
        raise Unbuilt(f"{family}: {type(error).__name__}: {error}") from error
    _randomize(model, zlib.crc32(family.encode()))
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return model


def _randomize(model: PreTrainedModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1.5 * noise / math.sqrt(parameter.shape[-1]))


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in PROMPTS]


def expected(model: PreTrainedModel) -> list[list[int]]:
    """What `generate()` puts out for each prompt by itself."""
    with torch.inference_mode():
        return [
            model.generate(
                torch.tensor([prompt]), max_new_tokens=TOKENS, min_new_tokens=TOKENS,
                eos_token_id=None,
            )[0, len(prompt) :].tolist()
            for prompt in prompts()
        ]  # fmt: skip


def served(model: PreTrainedModel, folder: Path, **options: Any) -> list[list[int]]:
    """What an engine puts out for all prompts beside one another. `ConfigError` if it refuses."""
    model.save_pretrained(folder)
    values: dict[str, Any] = {
        "num_blocks": 64, "max_num_batched_tokens": 16, "max_model_len": 64, **options
    }  # fmt: skip
    config = EngineConfig(
        dtype="float32",
        model_dir=str(folder),
        model="random",
        revision="test",
        parts=("language",),
        **values,
    )
    engine = Engine(config, lambda: None)
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    asked = [GenerateRequest(str(n), tokens, params) for n, tokens in enumerate(prompts())]
    try:
        tokens = run(
            engine, [(request, EncodeRequest(request.request_id, [])) for request in asked]
        )
    finally:
        engine.close()
    return [tokens[request.request_id, 0] for request in asked]


def verdict(family: str, folder: Path) -> str:
    """In a word and a reason."""
    try:
        model = built(family)
        wanted = expected(model)
    except Unbuilt as error:
        return f"unbuilt: {error}"
    except Exception as error:  # generate() of a model that does not generate by itself
        return f"unbuilt: generate() fails: {type(error).__name__}: {error}"
    try:
        return "equal" if served(model, folder) == wanted else "WRONG"
    except ConfigError as error:
        return f"refused: {error.message}"
    except Exception as error:
        return f"RAISED: {type(error).__name__}: {error}"


def main(families: Sequence[str]) -> int:
    bad = 0
    for family in families or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        with tempfile.TemporaryDirectory() as folder:
            found = verdict(family, Path(folder)).partition("\n")[0][:160]
        bad += found.startswith(("WRONG", "RAISED"))
        print(f"{family:24} {found}", flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
