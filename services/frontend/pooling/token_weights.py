"""Weights of an input's tokens as the sparse vector that RTP-LLM answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.frontend.tokenizer import Tokenizer

_UNUSED = ("cls_token", "eos_token", "pad_token", "unk_token")  # stand for no word of a text


class TokenWeights:
    """Of the model whose tokenizer this is. `named`: its special tokens by what they are for."""

    def __init__(self, tokenizer: Tokenizer, named: Mapping[str, str]) -> None:
        self._tokenizer = tokenizer
        found = (tokenizer.id(named[name]) for name in _UNUSED if name in named)
        self._unused = frozenset(found) - {None}

    def by_token(
        self, token_ids: Sequence[int], weights: Sequence[float], *, decoded: bool
    ) -> dict[str, float]:
        """The largest weight of each token that has one above 0, by its text if `decoded`, else by
        its id. Tokens of one text are one."""
        largest: dict[int, float] = {}
        for token, weight in zip(token_ids, weights, strict=True):
            if token not in self._unused and weight > largest.get(token, 0.0):
                largest[token] = weight
        found: dict[str, float] = {}
        for token, weight in largest.items():
            name = self._text(token) if decoded else str(token)
            found[name] = max(weight, found.get(name, 0.0))
        return found

    def _text(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special_tokens=False)
