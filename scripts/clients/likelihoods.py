"""What transformers says of texts, for the harness that asks a server for the same."""

from pathlib import Path
from typing import Any

from tests.support.reference import likelihood, load
from tests.support.stack import call

_PAIRS = (
    ("How many circles are there?", " There are three circles."),
    ("What colour is the square?", " The square is blue."),
    ("Hello", " there."),
)
_TOKENS = 8


def likelihoods(folder: Path, url: str) -> list[dict[str, Any]]:
    """Of each pair: its texts, the log-likelihood of the second after the first by transformers,
    whether each of its tokens is the likeliest one, and how the server goes on from the first.
    The last pair is the server's own, which is greedy."""
    reference = load(folder)
    found = []
    goes_on = {context: _goes_on(url, context) for context, _ in _PAIRS}
    for context, rest in (*_PAIRS, (_PAIRS[0][0], goes_on[_PAIRS[0][0]])):
        ids = reference.tokenizer(context + rest, add_special_tokens=False)["input_ids"]
        count = len(reference.tokenizer(context, add_special_tokens=False)["input_ids"])
        value, greedy = likelihood(reference.model, ids, count)
        found.append(
            {
                "context": context,
                "rest": rest,
                "value": value,
                "greedy": greedy,
                "goes_on": goes_on[context],
            }
        )
    return found


def _goes_on(url: str, prompt: str) -> str:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": _TOKENS}
    status, answer = call(f"{url}/v1/completions", body)
    if status != 200:
        raise RuntimeError(f"{status}: {answer}")
    return str(answer["choices"][0]["text"])
