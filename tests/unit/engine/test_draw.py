"""Draws from large vocabularies, where no row is sorted as a whole unless it must be."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from protocol.types import SamplingParams
from services.engine.sampling import draw as module
from services.engine.sampling.logprobs import logprobs

VOCABULARY = 5000
ROUNDINGS = (0.0, 2e-5, -2e-5)
CUTS = [
    {"top_k": 1},
    {"top_k": 40, "top_p": 0.9},
    {"top_k": 3000},
    {"top_k": 3000, "top_p": 0.5},
    {"top_p": 0.5},
    {"top_p": 0.9999},
    {"top_p": 0.8, "min_p": 0.02},
]


def logits(spread: float, seed: int = 0, step: float = 0.0) -> torch.Tensor:
    """One row; `step` rounds it, so that many tokens are equally likely."""
    row = spread * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))
    return (row / step).round() * step if step else row


def draw(rows: torch.Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]) -> Any:
    return module.draw(rows, params, numbers).tolist()


def by_hand(row: torch.Tensor, params: SamplingParams, number: float) -> int:
    """In float64, over the whole row sorted."""
    probs, order = torch.softmax(row.double() / params.temperature, 0).sort(
        descending=True, stable=True
    )
    if params.top_k > 0:
        probs, order = probs[: params.top_k], order[: params.top_k]
        probs = probs / probs.sum()
    kept = (probs.cumsum(0) - probs < params.top_p) & (probs >= params.min_p * probs[0])
    cumulative = (probs * kept).cumsum(0)
    return int(order[int((cumulative <= number * cumulative[-1]).sum())])


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("step", [0.0, 0.25])
def test_a_draw_is_that_of_the_whole_row_sorted(cut: dict[str, float], step: float) -> None:
    params = SamplingParams(temperature=0.8, **cut)  # type: ignore[arg-type]
    rows = [logits(spread, seed, step) for seed, spread in enumerate((0.5, 3.0, 8.0))]
    numbers = [0.05, 0.35, 0.61, 0.93]
    for row in rows:
        drawn = draw(row.expand(4, -1), [params] * 4, numbers)
        for token, number in zip(drawn, numbers, strict=True):
            # Between two tokens, and at the end of a nucleus, float32 may decide otherwise.
            assert token in {by_hand(row, params, number + rounding) for rounding in ROUNDINGS}


def test_a_row_draws_the_same_in_any_batch() -> None:
    params = [SamplingParams(temperature=0.7 + i / 10, **cut) for i, cut in enumerate(CUTS)]  # type: ignore[arg-type]
    params.append(SamplingParams(temperature=1.0, min_p=0.01))
    rows = torch.stack([logits(1.0 + i, i, 0.125) for i in range(len(params))])
    numbers = [0.1 + i / 10 for i in range(len(params))]
    alone = [draw(rows[i : i + 1], [params[i]], [numbers[i]])[0] for i in range(len(params))]
    assert draw(rows, params, numbers) == alone
    assert draw(rows.flip(0), params[::-1], numbers[::-1]) == alone[::-1]


def test_a_short_nucleus_needs_no_sort_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    likeliest = module._likeliest

    def counted(scaled: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(size)
        return likeliest(scaled, size)

    monkeypatch.setattr(module, "_likeliest", counted)
    flat, peaked = logits(0.01), logits(8.0)
    params = [SamplingParams(temperature=1.0, top_p=0.9)] * 2
    draw(torch.stack([peaked, peaked]), params, [0.5, 0.9])
    assert sizes == [64]
    draw(torch.stack([peaked, flat]), params, [0.5, 0.9])
    assert sizes[1:] == [64, 1024, VOCABULARY]
    draw(peaked[None], [SamplingParams(temperature=1.0)], [0.5])
    assert len(sizes) == 4


def test_a_single_row_of_a_full_vocabulary_draws_as_it_does_among_others() -> None:
    """PyTorch may add up a long row that is alone by threads, in another order."""
    rows = torch.randn(3, 152_000, generator=torch.Generator().manual_seed(3))
    numbers = [0.2, 0.5, 0.8]
    cuts: list[dict[str, Any]] = [{}, {"min_p": 0.1}, {"top_k": 50}]
    for cut in cuts:
        params = [SamplingParams(temperature=1.0, **cut)] * 3
        alone = [draw(rows[i : i + 1], params[:1], numbers[i : i + 1])[0] for i in range(3)]
        assert draw(rows, params, numbers) == alone


@pytest.mark.parametrize("cut", [{}, {"top_k": 50}, {"top_p": 0.9}])
@pytest.mark.parametrize("number", [0.0, 1.0])  # to which rounding may bring a number below
def test_what_is_forbidden_is_never_drawn(cut: dict[str, float], number: float) -> None:
    row = torch.full((VOCABULARY,), float("-inf"))
    row[[7, 4000]] = torch.tensor([0.0, 1.0])
    params = SamplingParams(temperature=1.0, **cut)  # type: ignore[arg-type]
    assert draw(row[None], [params], [number])[0] in (7, 4000)


def test_logprobs_of_several_rows_at_once() -> None:
    rows = torch.stack([logits(2.0, seed) for seed in range(3)])
    found = logprobs(rows, torch.tensor([11, 0, int(rows[2].argmax())]), {0: 3, 2: 0})
    assert sorted(found) == [0, 2]
    expected = torch.log_softmax(rows[0].double(), 0)
    assert found[0].logprob == pytest.approx(float(expected[11]), rel=1e-5)
    assert found[0].rank == int((expected > expected[11]).sum()) + 1
    best = expected.topk(3)
    assert [top.token_id for top in found[0].top_logprobs] == best.indices.tolist()
    assert [top.rank for top in found[0].top_logprobs] == [1, 2, 3]
    assert (found[2].rank, found[2].top_logprobs) == (1, [])


def test_logprobs_of_named_tokens() -> None:
    """Beside the likeliest, each once, with the rank that it has."""
    rows = torch.stack([logits(2.0, seed) for seed in range(3)])
    best = rows.argsort(dim=-1, descending=True)
    named = {0: [int(best[0, 1]), 7, int(best[0, 40])], 2: [9]}
    found = logprobs(rows, torch.tensor([11, 12, 13]), {0: 2, 1: 1, 2: 0}, named)
    expected = torch.log_softmax(rows.double(), -1)
    shown = [(top.token_id, top.rank) for top in found[0].top_logprobs]
    assert [token for token, _ in shown] == [*best[0, :2].tolist(), 7, int(best[0, 40])]
    assert all(int(best[0, rank - 1]) == token for token, rank in shown)
    (other,) = found[2].top_logprobs
    assert (other.token_id, other.logprob) == (9, pytest.approx(float(expected[2, 9]), rel=1e-5))
    assert [top.token_id for top in found[1].top_logprobs] == [int(best[1, 0])]


def test_named_tokens_of_a_row_that_wants_no_logprobs() -> None:
    assert list(
        logprobs(logits(2.0, 1)[None].repeat(2, 1), torch.tensor([1, 2]), {0: 0}, {1: [3]})
    ) == [0]
