"""Which entries are embeddings of a model."""

import pytest
import torch

from connectors.base import EC_TENSOR, Tensors
from protocol.errors import TransferError
from services.engine.model.embedding_layout import EmbeddingLayout
from services.engine.scheduling.seams import MISMATCH

TOKENS, WIDTH = 6, 8
LAYOUT = EmbeddingLayout(WIDTH, 2, torch.float32)


def entry(width: int = WIDTH, tokens: int = TOKENS, dtype: torch.dtype = torch.float32) -> Tensors:
    names = (EC_TENSOR, "deepstack_00", "deepstack_01")
    return {name: torch.randn(tokens, width).to(dtype) for name in names}


def joined(tensors: Tensors) -> Tensors:
    return {EC_TENSOR: torch.cat(list(tensors.values()), dim=1)}


def test_an_entry_of_the_model_is_taken_as_it_is() -> None:
    given = entry()
    assert LAYOUT.fitted("a", given, TOKENS) is given
    assert LAYOUT.token_bytes * TOKENS == sum(tensor.nbytes for tensor in given.values())


def test_what_vllm_writes_side_by_side_is_taken_apart() -> None:
    """Qwen3-VL: [tokens, (1 + levels) * hidden], the main part first."""
    given = entry()
    fitted = LAYOUT.fitted("a", joined(given), TOKENS)
    assert fitted.keys() == given.keys()
    assert all(torch.equal(fitted[name], given[name]) for name in given)


BAD: dict[str, Tensors] = {
    "no dimension": {EC_TENSOR: torch.tensor(1.0)},
    "one dimension": {EC_TENSOR: torch.zeros(TOKENS * WIDTH * 3)},
    "three dimensions": {EC_TENSOR: torch.zeros(TOKENS, 3, WIDTH)},
    "no deepstack": {EC_TENSOR: torch.zeros(TOKENS, WIDTH)},
    "joined, too wide": joined(entry(WIDTH + 1)),
    "joined, another dtype": joined(entry(dtype=torch.bfloat16)),
    "too narrow": entry(WIDTH // 2),
    "half the width, twice the bytes": entry(WIDTH // 2, dtype=torch.float64),
    "one more": entry() | {"deepstack_02": torch.zeros(TOKENS, WIDTH)},
    "another name": {**entry(), "deepstack_01": torch.zeros(TOKENS - 1, WIDTH)},
    "nothing": {},
}


@pytest.mark.parametrize("tensors", BAD.values(), ids=BAD.keys())
def test_anything_else_is_refused(tensors: Tensors) -> None:
    with pytest.raises(TransferError, match="this model needs"):
        LAYOUT.fitted("a", tensors, TOKENS)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), TransferError),
        (RuntimeError("CUDA error: an illegal memory access"), RuntimeError),
    ],
    ids=["memory", "device"],
)
def test_a_device_without_memory_fails_one_entry(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    """After another error the device may compute nothing more."""

    def failing(*_: object) -> torch.Tensor:
        raise error

    given = entry()
    assert LAYOUT.taken("a", given, TOKENS) == given
    monkeypatch.setattr(torch.Tensor, "to", failing)
    with pytest.raises(raised, match="memory"):
        LAYOUT.taken("a", given, TOKENS)


def test_another_number_of_tokens_is_told_apart() -> None:
    with pytest.raises(TransferError, match=r"made 5 embeddings.* has 6 tokens") as caught:
        LAYOUT.fitted("a", entry(tokens=5), TOKENS)
    assert caught.value.code == MISMATCH
