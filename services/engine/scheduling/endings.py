"""Where an answer ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from protocol.types import FinishReason
from services.engine.scheduling.request import Request


def ending(
    request: Request, tokens: Sequence[int], eos_token_ids: Collection[int]
) -> tuple[FinishReason | None, int | None, int]:
    """(finish reason, stop reason, how many of `tokens` are put out) as a choice gains them. A
    request that another worker decodes ends with its first token, one for a vector without any."""
    if request.source.pooling is not None:
        return "stop", None, 0
    sampling, output = request.sampling, request.num_output
    eos = () if sampling.ignore_eos else eos_token_ids
    room = 1 if request.hands_over else max(1, sampling.max_tokens - output)
    for given, token in enumerate(tokens[:room] if eos or sampling.stop_token_ids else (), 1):
        if output + given >= sampling.min_tokens:
            if token in eos:
                return "stop", None, given
            if token in sampling.stop_token_ids:
                return "stop", token, given
    return ("length", None, room) if len(tokens) >= room else (None, None, len(tokens))
