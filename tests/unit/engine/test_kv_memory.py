"""Which engines can read each other's KV."""

from typing import Any

import msgspec

from protocol.refs import KVGroup, KVLayout
from services.engine.config import EngineConfig
from services.engine.kv_memory import kv_compatibility

CONFIG = EngineConfig(
    model_dir="/m", model="m", revision="r1" * 20, parts=("language",), dtype="float32"
)
LAYOUT = KVLayout((KVGroup((0, 1), 2, 16, 16),), 16, "float32")


def kind(held: str = "float32", **fields: Any) -> str:
    """`held`: the type of what the blocks hold."""
    config = msgspec.structs.replace(CONFIG, **fields)
    return kv_compatibility(config, msgspec.structs.replace(LAYOUT, dtype=held))


def test_kv_of_other_weights_types_and_layouts_is_of_another_kind() -> None:
    kinds = [
        kind(),
        kind(model="n"),
        kind(revision="r2" * 20),
        kind(quantization="int8"),
        kind(quantization="fp8"),
        kind("bfloat16", dtype="bfloat16"),
        kind("int8"),  # codes of what is computed in float32
        kind("int8", dtype="bfloat16"),
    ]
    assert len(set(kinds)) == len(kinds)


def test_what_kv_does_not_depend_on_makes_no_difference() -> None:
    assert kind() == kind(num_blocks=7, max_num_seqs=3, weight_layout="packed", device="cpu")
    assert kind().startswith("m@r1r1r1r1r1r1:")
