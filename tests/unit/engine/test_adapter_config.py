"""Ranks and scales by patterns of layer names: as PEFT has them, in bounded time."""

import pytest

from protocol.errors import InvalidRequest
from services.engine.model.adapter_config import AdapterConfig, Scales

LAYERS = [
    f"model.language_model.layers.{index}.{name}"
    for index in (0, 1, 10, 11, 21)
    for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj", "mlp.gate_up-proj")
]
SERVED = [
    "q_proj", "proj", "layers.1.self_attn.q_proj", r"layers\.1\.self_attn\.q_proj",
    "^model.language_model.layers.0.mlp.down_proj", "^layers.0.mlp.down_proj", "q_proj$",
    "layers.1.*", r"layers\.\d+\.mlp.down_proj", "layers.[0-9].mlp.*", "layers.[12]1.*",
    r"layers\.(0|21)\.mlp\.(down_proj|up_proj)", ".*", "gate_up-proj", "..proj", "q.proj",
]  # fmt: skip
UNSERVED = [
    "", "^", "(", "a{9}",
    "(a+)+b", "(.*)*b", "(a|a)*b", "(a|b)(a|b)(a|b)", ".*.*.*", "[0-9", "[9-0]",
    "[^0]", "a*", "q_proj|k_proj", "(?i)q", r"\w+", "a" * 300, "é", "q_proj\n", "a b",
]  # fmt: skip


@pytest.mark.parametrize("key", SERVED)
def test_a_key_matches_what_it_matches_for_peft(key: str) -> None:
    pattern_key = pytest.importorskip("peft.utils.other").get_pattern_key
    scales = Scales("a", AdapterConfig("LORA", r=1, lora_alpha=1, alpha_pattern={key: 3}))
    found = [scales.of(layer) == 3 for layer in LAYERS]
    assert found == [pattern_key([key], layer) == key for layer in LAYERS]


def test_the_first_key_counts_and_the_other_field_too() -> None:
    config = AdapterConfig(
        "LORA", r=2, alpha_pattern={"layers.1.*": 10, "q_proj": 4}, rank_pattern={"q_proj": 4}
    )
    scales = Scales("a", config)
    found = [scales.of(f"layers.{index}.q_proj") for index in (0, 1)]
    assert found == [1.0, 2.5] and scales.of("layers.0.k_proj") == 4.0


@pytest.mark.parametrize("key", UNSERVED)
def test_other_regular_expressions_are_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Scales("a", AdapterConfig("LORA", r=1, rank_pattern={"q_proj": 1, key: 2}))
    shown = f"LoRA adapter 'a': adapter_config.json: rank_pattern: '{key[:200]}' is beyond"
    assert refused.value.message.startswith(shown)


@pytest.mark.parametrize(
    ("keys", "why"),
    [([f"l.{n}" for n in range(3000)], "more than 2048"), ([f"{n}.*" for n in range(17)], "'16")],
)
def test_a_file_may_not_ask_for_more_than_so_much(keys: list[str], why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"alpha_pattern: .*{why}"):
        Scales("a", AdapterConfig("LORA", r=1, alpha_pattern=dict.fromkeys(keys, 1.0)))
