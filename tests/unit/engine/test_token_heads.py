"""Files of linear layers: read as tensors, of the size that the model has, or refused by name."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.errors import ConfigError
from protocol.pooling import Pooler
from services.engine.model.token_heads import TokenHeads

POOLER = Pooler("embed", 8, forms=("token_weights", "token_vectors"), encoder=True)

SPARSE = torch.nn.Linear(8, 1).state_dict()


def write(folder: Path, sparse: Any = None, colbert: Any = None) -> Path:
    torch.manual_seed(3)
    for name, given, rows in (("sparse", sparse, 1), ("colbert", colbert, 8)):
        state = torch.nn.Linear(8, rows).state_dict() if given is None else given
        torch.save(state, folder / f"{name}_linear.pt")
    return folder


def test_weights_are_none_below_0_and_vectors_of_length_1(tmp_path: Path) -> None:
    heads = TokenHeads(write(tmp_path), POOLER, "cpu")
    hidden = torch.randn(5, 8)
    weights = heads.answer("token_weights", hidden)
    state = torch.load(tmp_path / "sparse_linear.pt", weights_only=True)
    raw = hidden @ state["weight"][0] + state["bias"]
    assert weights.tolist() == pytest.approx(raw.clamp(min=0).tolist(), abs=1e-6)
    assert float(raw.min()) < 0 < float(raw.max()), "the bound is tried"
    vectors = heads.answer("token_vectors", hidden)
    assert vectors.shape == (4, 8)
    assert vectors.norm(dim=-1).tolist() == pytest.approx([1.0] * 4)


def test_only_the_files_that_are_wanted_are_read(tmp_path: Path) -> None:
    TokenHeads(tmp_path, Pooler("embed", 8, encoder=True), "cpu")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sparse": {"weight": torch.zeros(1, 9), "bias": torch.zeros(1)}}, r"\[1, 9\]"),
        ({"colbert": {"weight": torch.zeros(4, 8), "bias": torch.zeros(4)}}, r"only \[8, 8\]"),
        (
            {"colbert": {"weight": torch.zeros(8, 8), "bias": torch.zeros(4)}},
            r"a weight \[8, 8\] of torch.float32 and a bias \[4\] of torch.float32",
        ),
        ({"sparse": {**SPARSE, "weight": torch.zeros(1, 8).int()}}, "of torch.int32 and a bias"),
        (
            {"sparse": {**SPARSE, "bias": torch.zeros(1, dtype=torch.complex64)}},
            "of torch.complex64: only",
        ),
        ({"sparse": {**SPARSE, "more": torch.zeros(1 << 15)}}, "bytes, at most 65600 are read"),
        ({"sparse": {"weight": torch.zeros(1, 8)}}, "no weight and bias"),
        ({"colbert": [1, 2]}, "no weight and bias"),
    ],
)
def test_other_layers_are_refused_by_their_file(
    given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        TokenHeads(write(tmp_path, **given), POOLER, "cpu")
    assert f"{next(iter(given))}_linear.pt" in str(error.value)


class _Runs:
    """Would make a folder once it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    write(tmp_path, sparse={"weight": _Runs(tmp_path / "made"), "bias": 0})
    with pytest.raises(ConfigError, match=r"cannot read .*sparse_linear\.pt"):
        TokenHeads(tmp_path, POOLER, "cpu")
    assert not (tmp_path / "made").exists()


def test_a_file_of_rubbish_is_refused(tmp_path: Path) -> None:
    (write(tmp_path) / "colbert_linear.pt").write_bytes(b"rubbish")
    with pytest.raises(ConfigError, match=r"cannot read .*colbert_linear\.pt"):
        TokenHeads(tmp_path, POOLER, "cpu")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    (write(tmp_path) / "sparse_linear.pt").unlink()
    with pytest.raises(ConfigError, match=r"sparse_linear\.pt: No such file or directory"):
        TokenHeads(tmp_path, POOLER, "cpu")
