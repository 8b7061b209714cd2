"""What parameters do to a batch's logits is what they do to each row alone, by a few operations."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from protocol.keys import BlockKeyChain
from protocol.types import GenerateRequest, SamplingParams
from services.engine.sampling.adjust import Adjustments
from services.engine.sampling.sampler import Sampler
from services.engine.scheduling.request import Request

VOCABULARY = 40
PROMPT = [3, 5, 5, 39, 1000]  # the last one is a placeholder beyond the logits
INF = float("-inf")
HOW: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.7},
    {"presence_penalty": 0.5, "frequency_penalty": 0.25},
    {"logit_bias": {5: 2.0, 7: -1.5}, "frequency_penalty": 1.0},
    {"min_tokens": 9, "stop_token_ids": (6,)},
    {"repetition_penalty": 1.3, "presence_penalty": 1.0, "logit_bias": {5: 3.0}},
]


class Only:
    """A grammar that allows a few tokens."""

    ready = True

    def __init__(self, *tokens: int) -> None:
        self.mask = np.isin(np.arange(VOCABULARY), tokens)

    def another(self) -> "Only":
        return self

    def allowed(self, output: Any) -> NDArray[np.bool_]:
        return self.mask


def request(output: list[int], **sampling: Any) -> Request:
    source = GenerateRequest("r", PROMPT, SamplingParams(**sampling))
    positions = np.zeros((1, len(PROMPT)), np.int64)
    return Request(source, 0, 0, [*PROMPT, *output], positions, 0, BlockKeyChain(b"", 16, ()))


def by_hand(row: torch.Tensor, asked: Request) -> torch.Tensor:
    row, s = row.clone(), asked.sampling
    for token in {*asked.tokens} - {1000}:
        row[token] *= 1 / s.repetition_penalty if row[token] > 0 else s.repetition_penalty
    for token in {*asked.output}:
        row[token] -= s.presence_penalty + s.frequency_penalty * list(asked.output).count(token)
    for token, bias in s.logit_bias.items():
        row[token] += bias
    if asked.num_output < s.min_tokens:
        row[[0, *s.stop_token_ids]] = INF
    return row


def test_a_batch_is_adjusted_as_its_rows_are_alone() -> None:
    logits = torch.randn(len(HOW), VOCABULARY, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    requests = [request([5, 8, 5], **how) for how in HOW]
    adjustments = Adjustments((0,))
    for added in ([], [8], [9, 9]):  # what was counted before is counted on
        for one in requests:
            one.tokens += added
        found, failures = adjustments.apply(logits, requests)
        assert failures == {} and torch.equal(logits, before)
        expected = torch.stack([by_hand(logits[i], one) for i, one in enumerate(requests)])
        torch.testing.assert_close(found, expected)


def test_only_what_a_grammar_allows_is_left_and_all_of_it_where_nothing_else_is() -> None:
    logits = torch.randn(3, VOCABULARY)
    requests = [request([]), request([], min_tokens=1), request([])]
    requests[0].constraint, requests[1].constraint = Only(4, 7), Only(0)
    found, _ = Adjustments((0,)).apply(logits, requests)
    assert torch.isfinite(found[0]).nonzero().flatten().tolist() == [4, 7]
    assert torch.equal(found[0, [4, 7]], logits[0, [4, 7]])
    assert torch.isfinite(found[1]).nonzero().flatten().tolist() == [0]
    assert torch.equal(found[2], logits[2])


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what makes the host wait for a device."""

    _WAITING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in self._WAITING
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [1, 6])
def test_no_row_makes_the_host_wait_for_the_device(rows: int) -> None:
    """`item`, and what asks a tensor for its truth; the lists that are read are read at once."""
    logits = torch.randn(rows, VOCABULARY)
    requests = [
        request([5, 8], temperature=1.0, top_k=3, logprobs=2, **HOW[row % len(HOW)])
        for row in range(rows)
    ]
    with Reads() as reads:  # type: ignore[no-untyped-call]
        assert len(Sampler((0,)).sample(logits, requests)) == rows
    assert reads.count == 0
