"""Log-probabilities that a worker was asked for and does not tell as it should."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from protocol.generate_answers import ChoiceBody, GenerateAnswer, LogprobsBody
from protocol.types import FinishReason, GenerateRequest, PositionLogprobs, SamplingParams
from tests.support.scripted_workers import DONE, TOKENS, Worker, asking, before, event

SCORED = SamplingParams(max_tokens=4, logprobs=1, prompt_logprobs=1)
POSITION = PositionLogprobs(11, -1.0, 1)


def scoring(prompt: int | None, *shown: int | None, whole: bool = False) -> Any:
    """So many log-probabilities of the prompt and of each token; None: the field is not there."""

    def said(request: GenerateRequest, count: int | None, number: int) -> GenerateAnswer:
        last = number == len(shown) - 1
        body = None if count is None else LogprobsBody([POSITION] * count)
        choice = ChoiceBody(0, TOKENS[number : number + 1], "length" if last else None, None, body)
        scores = None if prompt is None or number else [POSITION] * prompt
        return GenerateAnswer(request.request_id, [choice], prompt_logprobs=scores)

    async def script(request: GenerateRequest) -> AsyncIterator[bytes]:
        for number, count in enumerate(shown):
            yield b"data: " + msgspec.json.encode(said(request, count, number)) + b"\n\n"
        yield DONE

    async def answer(request: GenerateRequest) -> bytes:
        return msgspec.json.encode(said(request, shown[0], 0))

    return answer if whole else script


UNSCORED = [(None, 1), (0, 1), (2, 1), (1, None), (1, 0), (1, 50)]
"""Of a prompt of two tokens one is scored, and each token of the answer."""


@pytest.mark.parametrize(("prompt", "shown"), UNSCORED)
async def test_scores_that_are_missing_are_asked_for_elsewhere(
    prompt: int | None, shown: int | None
) -> None:
    bad = Worker(scoring(prompt, shown, 1, 1, 1))
    good = Worker(scoring(1, 1, 1, 1, 1))
    async with before(decode=[bad, good]) as stack:
        stack.decode[1].in_flight += 1
        wanted = msgspec.structs.replace(asking(), sampling=SCORED)
        found = [one async for some in stack.gateway.pipeline.run(wanted, {}) for one in some]
        assert [one.token_ids for one in found] == [[token] for token in TOKENS]
        assert [len(one.logprobs or ()) for one in found] == [1] * 4
        assert found[0].prompt_logprobs == [POSITION]
        assert (len(bad.calls), len(good.calls)) == (1, 1)
        assert [one.breaker.failures for one in stack.decode] == [1, 0]


@pytest.mark.parametrize(("prompt", "shown"), UNSCORED)
async def test_so_are_those_that_prefill_leaves_out(prompt: int | None, shown: int | None) -> None:
    bad = Worker(whole=scoring(prompt, shown, 1, whole=True))
    good = Worker(whole=scoring(1, 1, 1, whole=True))
    rest = Worker(later)
    async with before(prefill=[bad, good], decode=[rest]) as stack:
        stack.fleet.prefill[1].in_flight += 1
        wanted = msgspec.structs.replace(asking(), sampling=SCORED)
        found = [one async for some in stack.gateway.pipeline.run(wanted, {}) for one in some]
        assert [one.token_ids for one in found] == [[token] for token in TOKENS]
        assert found[0].prompt_logprobs == [POSITION]
        assert (len(bad.calls), len(good.calls)) == (1, 1)


async def later(request: GenerateRequest) -> AsyncIterator[bytes]:
    for number, token in enumerate(TOKENS[1:], 1):
        end: FinishReason | None = "length" if number == len(TOKENS) - 1 else None
        yield event(request, ChoiceBody(0, [token], end, None, LogprobsBody([POSITION])))
    yield DONE
