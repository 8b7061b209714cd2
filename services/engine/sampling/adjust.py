"""What a request's parameters do to its logits before a token is chosen, all rows at once: the
host collects single values and writes them in a fixed number of operations, whose results it does
not wait for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import InvalidRequest, TriptychError
from services.engine.scheduling.request import Request


class Adjustments:
    """Penalties, biases, `min_tokens` and grammars; `eos_token_ids` are what `min_tokens` holds
    back."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos = tuple(eos_token_ids)
        # Counted on from step to step: a long context would be counted anew for each token.
        self._histories: WeakKeyDictionary[Request, _History] = WeakKeyDictionary()

    def apply(
        self, logits: torch.Tensor, requests: Sequence[Request]
    ) -> tuple[torch.Tensor, dict[int, TriptychError]]:
        """The adjusted logits, a copy if anything changes, and by row why a grammar cannot be
        followed. logits float32[S, vocabulary]"""
        rows = [row for row, request in enumerate(requests) if not self._plain(request)]
        if not rows:
            return logits, {}
        # A copy: log-probabilities are taken of the logits as the model gave them.
        changed = logits.clone()
        # Rows of guessed tokens need no counts of their own: requests with penalties, `min_tokens`
        # to come or a grammar are not guessed for (`Request.may_be_guessed`).
        self._penalize_repetition(changed, requests, rows)
        self._add(changed, requests, rows)
        self._hold_back(changed, requests, rows)
        return changed, _constrain(changed, requests, rows)

    def _plain(self, request: Request) -> bool:
        s = request.sampling
        return (
            s.presence_penalty == 0
            and s.frequency_penalty == 0
            and s.repetition_penalty == 1
            and not s.logit_bias
            and request.num_output >= s.min_tokens
            and request.constraint is None
        )

    def _penalize_repetition(
        self, logits: torch.Tensor, requests: Sequence[Request], rows: Sequence[int]
    ) -> None:
        """CTRL's penalty (arXiv:1909.05858) on every token of prompt and output."""
        cells = _Cells(logits)
        for row in rows:
            penalty = requests[row].sampling.repetition_penalty
            if penalty != 1:
                cells.add(row, self._history(requests[row]).seen, penalty)
        if cells:
            places, factors = cells.tensors()
            values = logits[places]
            logits[places] = torch.where(values > 0, values / factors, values * factors)

    def _add(self, logits: torch.Tensor, requests: Sequence[Request], rows: Sequence[int]) -> None:
        """OpenAI's penalties, which count the output only, and biases."""
        cells = _Cells(logits)
        for row in rows:
            s = requests[row].sampling
            amounts = dict(s.logit_bias)
            if s.presence_penalty or s.frequency_penalty:
                for token, times in self._history(requests[row]).output.items():
                    penalty = s.presence_penalty + s.frequency_penalty * times
                    amounts[token] = amounts.get(token, 0.0) - penalty
            cells.add(row, amounts, list(amounts.values()))
        if cells:
            places, values = cells.tensors()
            logits[places] += values

    def _hold_back(
        self, logits: torch.Tensor, requests: Sequence[Request], rows: Sequence[int]
    ) -> None:
        cells = _Cells(logits)
        for row in rows:
            request = requests[row]
            if request.num_output < request.sampling.min_tokens:
                ends = {*self._eos, *request.sampling.stop_token_ids}
                cells.add(row, ends, float("-inf"))
        if cells:
            places, values = cells.tensors()
            logits[places] = values

    def _history(self, request: Request) -> _History:
        history = self._histories.setdefault(request, _History())
        history.follow(request)
        return history


class _History:
    """How often each token stands in a request's output, and which tokens it has seen at all."""

    def __init__(self) -> None:
        self.output: dict[int, int] = {}
        self.seen: dict[int, None] = {}
        self._followed = 0

    def follow(self, request: Request) -> None:
        """Count what has been added since the last call; a request's tokens only grow."""
        for place in range(self._followed, len(request.tokens)):
            token = request.tokens[place]
            self.seen[token] = None
            if place >= request.num_prompt:
                self.output[token] = self.output.get(token, 0) + 1
        self._followed = len(request.tokens)


class _Cells:
    """Places in the logits, no place twice, and a value for each."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._vocabulary = logits.shape[1]
        self._device = logits.device
        self._dtype = logits.dtype
        self._places: list[NDArray[np.int64]] = []
        self._values: list[NDArray[np.float64]] = []

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, row: int, tokens: Collection[int], values: Sequence[float] | float) -> None:
        """A value for each token of a row, or one for all. Ids beyond the vocabulary, as media
        placeholders have in some families, are left out."""
        if not tokens:
            return
        ids = np.fromiter(tokens, np.int64, len(tokens))
        known = ids < self._vocabulary
        self._places.append(np.stack([np.full(known.sum(), row), ids[known]]))
        self._values.append(np.broadcast_to(np.asarray(values, np.float64), ids.shape)[known])

    def tensors(self) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Row and token int64[N] of each place, and the values [N]."""
        places = torch.from_numpy(np.concatenate(self._places, axis=1)).to(self._device)
        values = torch.from_numpy(np.concatenate(self._values)).to(self._device, self._dtype)
        return (places[0], places[1]), values


def _constrain(
    logits: torch.Tensor, requests: Sequence[Request], rows: Sequence[int]
) -> dict[int, TriptychError]:
    """Only what grammars allow; where nothing of that is left, all of it. Failures by row."""
    masks: dict[int, NDArray[np.bool_]] = {}
    failures: dict[int, TriptychError] = {}
    for row in rows:
        constraint = requests[row].constraint
        if constraint is None:
            continue
        try:
            masks[row] = constraint.allowed(requests[row].output)
        except InvalidRequest as error:
            failures[row] = error
    if masks:
        _mask(logits, masks)
    return failures


def _mask(logits: torch.Tensor, masks: Mapping[int, NDArray[np.bool_]]) -> None:
    rows = list(masks)
    allowed = torch.from_numpy(np.stack(list(masks.values()))).to(logits.device)
    left = torch.where(allowed, logits[rows], float("-inf"))
    # As where a grammar is at its end and `min_tokens` has held the end back: the grammar wins.
    none_left = left.max(dim=-1, keepdim=True).values == float("-inf")
    logits[rows] = torch.where(none_left & allowed, 0.0, left)
