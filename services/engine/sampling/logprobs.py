"""Log-probabilities of a step's tokens, of all rows that want them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from protocol.types import PositionLogprobs, TokenLogprob


def logprobs(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    wanted: Mapping[int, int],
    named: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> dict[int, PositionLogprobs]:
    """Of the token of each row in `wanted`, which says how many of the likeliest to add; rows in
    `named`, all of which are wanted, add these tokens too.

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
    lists = [named.get(row, ()) for row in rows]
    if any(lists):
        columns += _of_named(values, lists)
    table = torch.cat(columns, dim=-1).tolist()
    depth = best.values.shape[-1]
    return {
        row: _of_row(line, wanted[row], depth, ids)
        for row, line, ids in zip(rows, table, lists, strict=True)
    }


def _of_named(values: torch.Tensor, lists: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Values and ranks of each row's tokens, float64[S, most], rows with fewer filled up; values
    float32[S, vocabulary]."""
    most = max(map(len, lists))
    ids = torch.tensor([[*ids, *[0] * (most - len(ids))] for ids in lists], device=values.device)
    found = values.gather(1, ids)
    # One column at a time: a comparison of all would take their number times the logits' memory.
    ranks = [(values > found[:, [i]]).sum(-1, keepdim=True) + 1 for i in range(most)]
    return [found.double(), *(rank.double() for rank in ranks)]


def _of_row(
    line: Sequence[float], count: int, depth: int, named: Sequence[int]
) -> PositionLogprobs:
    """`depth`: how many of the likeliest the line has."""
    token, own, rank, *more = line
    values, ids, rest = more[:depth], more[depth : 2 * depth], more[2 * depth :]
    top = [TokenLogprob(int(ids[i]), values[i], i + 1) for i in range(count)]
    shown, most = {entry.token_id for entry in top}, len(rest) // 2
    top += [
        TokenLogprob(named[i], rest[i], int(rest[most + i]))
        for i in range(len(named))
        if named[i] not in shown
    ]
    return PositionLogprobs(int(token), own, int(rank), top)
