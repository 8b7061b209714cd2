"""Log-likelihoods as evaluation harnesses ask for them, equal to transformers'."""

import pytest

from tests.conformance.asking import Door
from tests.conftest import ModelDir
from tests.support.reference import likelihood, load

CASES = [
    ("How many circles are there?", " There are three circles."),
    ("What colour is the square?", " The square is blue."),
    ("Tell me a story.", " Once upon a time there was a small server."),
]


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_log_likelihoods_are_those_of_transformers(
    max_tokens: int, door: Door, model_dir: ModelDir
) -> None:
    """As lm-eval's local-completions asks: token ids, several prompts, echo, one alternative."""
    model = load(model_dir("qwen3").resolve()).model
    contexts = [door.tokenize(context) for context, _ in CASES]
    prompts = [ids + door.tokenize(rest) for ids, (_, rest) in zip(contexts, CASES, strict=True)]
    # One continuation is the model's own, so that greedy ones are told apart from others.
    own = door.ask("completions", prompt=contexts[0])["choices"][0]["token_ids"]
    contexts.append(contexts[0])
    prompts.append(contexts[0] + own)
    answer = door.ask(
        "completions", prompt=prompts, echo=True, logprobs=1, max_tokens=max_tokens,
        return_tokens_as_token_ids=True,
    )  # fmt: skip
    for choice, ids, context in zip(answer["choices"], prompts, contexts, strict=True):
        scored = choice["logprobs"]
        end = len(ids)
        values = scored["token_logprobs"][len(context) : end]
        tops = scored["top_logprobs"][len(context) : end]
        expected, greedy = likelihood(model, ids, len(context))
        assert sum(values) == pytest.approx(expected, abs=1e-3)
        assert all(v == max(t.values()) for v, t in zip(values, tops, strict=True)) is greedy
        assert len(scored["tokens"]) == end + max_tokens
    assert [likelihood(model, ids, len(c))[1] for ids, c in zip(prompts, contexts, strict=True)][-1]
