"""Which of the guessed tokens of a step are right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.seams import Sampled


def checked(chunks: Sequence[Chunk], sampled: Sequence[Sampled]) -> list[Sampled]:
    """One result for each choice. `sampled`: one for each token, of each chunk's choices in turn.

    A guess is right if it is what is drawn in its place, so that an output is what it would be
    without guesses. What was drawn behind a wrong one is worth nothing.
    """
    rows = iter(sampled)
    found: list[Sampled] = []
    for chunk in chunks:
        for _ in chunk.samplers:
            drawn = list(islice(rows, 1 + len(chunk.draft)))
            found.append(_joined(drawn, chunk.draft) if chunk.draft else drawn[0])
    return found


def _joined(drawn: Sequence[Sampled], draft: Sequence[int]) -> Sampled:
    kept = 1
    for guess, one in zip(draft, drawn, strict=False):
        if one.token_ids != [guess]:
            break
        kept += 1
    first = drawn[0]
    logprobs = [entry for one in drawn[:kept] for entry in one.logprobs or ()]
    return Sampled(
        first.request,
        [token for one in drawn[:kept] for token in one.token_ids],
        logprobs or None,
        first.failure,
        drafted=len(draft),
    )
