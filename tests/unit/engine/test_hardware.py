"""What `auto` means for the element type."""

import logging

import pytest
import torch

from services.engine.config import EngineConfig
from services.engine.hardware import resolved


@pytest.mark.parametrize(
    ("able", "dtype"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, "bfloat16"),
        ({"avx512_bf16": False, "amx_bf16": True}, "bfloat16"),
        ({"avx512_bf16": False, "amx_bf16": False}, "float32"),
        ({"architecture": "aarch64"}, "float32"),
    ],
)
def test_a_cpu_computes_bfloat16_if_it_has_instructions_for_it(
    able: dict[str, object],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    caplog.set_level(logging.INFO)
    given = EngineConfig(model_dir="m", model="m", revision="r", parts=("language",), device="cpu")
    assert resolved(given).dtype == dtype
    assert f"{dtype} on cpu" in caplog.text
    for named in ("float32", "float16", "bfloat16"):
        config = EngineConfig(
            model_dir="m", model="m", revision="r", parts=("language",), device="cpu", dtype=named
        )
        assert resolved(config).dtype == named
