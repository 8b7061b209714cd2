"""Log-probabilities of a step's tokens, of all rows that want them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from protocol.types import PositionLogprobs, TokenLogprob


def logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, wanted: Mapping[int, int]
) -> dict[int, PositionLogprobs]:
    """Of the token of each row in `wanted`, which says how many of the likeliest to add.

    logits float32[S, vocabulary], tokens int64[S]. All of it is read back from the device at once.
    """
    if not wanted:
        return {}
    rows = list(wanted)
    # A batch may be 20 MB and more: it is not copied where all of it is wanted.
    chosen_rows = logits if len(rows) == len(logits) else logits[rows]
    values = torch.log_softmax(chosen_rows.float(), dim=-1)
    chosen = tokens[rows][:, None]
    own = values.gather(1, chosen)
    rank = (values > own).sum(-1, keepdim=True) + 1
    best = values.topk(max(wanted.values()), dim=-1)
    # float64 holds every id and every float32 exactly.
    columns = [part.double() for part in (chosen, own, rank, best.values, best.indices)]
    table = torch.cat(columns, dim=-1).tolist()
    return {row: _of_row(line, wanted[row]) for row, line in zip(rows, table, strict=True)}


def _of_row(line: Sequence[float], count: int) -> PositionLogprobs:
    token, own, rank, *best = line
    values, ids = best[: len(best) // 2], best[len(best) // 2 :]
    top = [TokenLogprob(int(ids[i]), values[i], i + 1) for i in range(count)]
    return PositionLogprobs(int(token), own, int(rank), top)
