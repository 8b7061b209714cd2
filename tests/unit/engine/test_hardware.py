"""What `auto` means for the element type."""

import logging

import msgspec
import pytest
import torch

from services.engine import hardware
from services.engine.config import EngineConfig
from services.engine.hardware import resolved


@pytest.mark.parametrize(
    ("able", "kernel", "dtype"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, False, "bfloat16"),
        ({"avx512_bf16": False, "amx_bf16": True}, False, "bfloat16"),
        ({"avx512_bf16": False, "amx_bf16": False}, False, "float32"),
        ({"avx512_bf16": False, "amx_bf16": False}, True, "bfloat16"),
        ({"architecture": "aarch64"}, False, "float32"),
    ],
)
def test_a_cpu_computes_bfloat16_if_it_has_instructions_or_a_kernel_for_it(
    able: dict[str, object],
    kernel: bool,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    monkeypatch.setattr(hardware, "computes_linear", lambda: kernel)
    caplog.set_level(logging.INFO)
    given = EngineConfig(model_dir="m", model="m", revision="r", parts=("language",), device="cpu")
    assert resolved(given).dtype == dtype
    assert f"{dtype} on cpu" in caplog.text
    if kernel:  # which is of no use for these
        for option in ({"weight_layout": "plain"}, {"quantization": "int8"}):
            assert resolved(msgspec.structs.replace(given, **option)).dtype == "float32"
    for named in ("float32", "float16", "bfloat16"):
        config = EngineConfig(
            model_dir="m", model="m", revision="r", parts=("language",), device="cpu", dtype=named
        )
        assert resolved(config).dtype == named
