"""Softmax under a causal mask by the kernel, and by PyTorch where there is none."""

import pytest
import torch

from services.engine.attention.cpu_softmax import causal_softmax
from services.engine.attention.prompt_tiles import softmax_by_torch

HEADS = 3


def hidden(queries: int, keys: int) -> torch.Tensor:
    position = torch.arange(keys - queries, keys).repeat(HEADS)[:, None]
    return torch.arange(keys) > position


def reference(scores: torch.Tensor, queries: int, scale: float) -> torch.Tensor:
    unseen = hidden(queries, scores.shape[-1])
    return torch.softmax((scores.double() * scale).masked_fill(unseen, float("-inf")), dim=-1)


def made(queries: int, keys: int, spread: float) -> torch.Tensor:
    torch.manual_seed(keys)
    return spread * torch.randn(2, HEADS * queries, keys)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (16, 40), (64, 64), (33, 1000)])
@pytest.mark.parametrize("spread", [0.0, 1.0, 300.0])
def test_weights_are_those_of_what_each_query_sees(queries: int, keys: int, spread: float) -> None:
    softmax = causal_softmax()
    assert softmax is not None
    scores = made(queries, keys, spread)
    truth = reference(scores, queries, 0.3)

    narrow = softmax(scores.clone(), queries, 0.3, torch.bfloat16)
    exact = softmax(scores.clone(), queries, 0.3, torch.float32)

    torch.testing.assert_close(exact.double(), truth, rtol=2e-5, atol=1e-30)
    assert torch.equal(narrow, exact.bfloat16())
    assert not exact[:, hidden(queries, keys)].any()


def test_negative_scores_are_compared_rightly() -> None:
    """The largest is found by the bits, which order negative numbers backwards."""
    softmax = causal_softmax()
    assert softmax is not None
    scores = -1000.0 + torch.linspace(-50.0, 0.0, 64).repeat(1, HEADS, 1)
    truth = reference(scores, 1, 1.0)
    torch.testing.assert_close(
        softmax(scores.clone(), 1, 1.0, torch.float32).double(), truth, rtol=2e-5, atol=1e-30
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_kernels_pytorch_computes_the_same(dtype: torch.dtype) -> None:
    scores = made(16, 40, 1.0)
    found = softmax_by_torch(scores.clone(), 16, 0.3, dtype)
    assert found.dtype is dtype
    tolerance = 1e-6 if dtype is torch.float32 else 4e-3
    torch.testing.assert_close(
        found.double(), reference(scores, 16, 0.3), rtol=tolerance, atol=1e-9
    )
