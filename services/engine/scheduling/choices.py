"""The choices of a request: the others share its prompt and come to life once that is computed;
where the answer of each ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from connectors.kv.base import KVArrival
from protocol.types import FinishReason
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.live_requests import LiveRequests
from services.engine.scheduling.request import Request, sibling_of
from services.engine.scheduling.scheduler import Scheduler
from services.engine.scheduling.seams import Sampled


class SiblingChoices:
    """Until then a request stands for all of its choices, so that its prompt is computed once."""

    def __init__(self, live: LiveRequests, scheduler: Scheduler) -> None:
        self._live = live
        self._scheduler = scheduler

    def with_siblings(self, chunk: Chunk) -> Chunk:
        """Once a prompt is complete its other choices come to life.

        Those with nothing emitted draw their first token from the same logits.
        """
        request = chunk.request
        if not request.siblings or chunk.end < request.num_prompt:
            return chunk
        siblings = self._begin(request)
        if request.num_output or not chunk.samplers:
            return chunk
        return replace(chunk, samplers=(request, *siblings))

    def adopted(self, request: Request, arrival: KVArrival) -> list[Sampled]:
        """The tokens that came with a request's KV, as if they were sampled here.

        Only where the request was placed here before they were known; a caller that asks later
        knows them, and says so by `emitted`.
        """
        if not request.adopts or set(arrival.outputs) != {request.index, *request.siblings}:
            return []
        request.num_computed = arrival.num_tokens
        choices = [request, *self._begin(request)]
        return [
            Sampled(choice, [token])
            for choice in choices
            for token in arrival.outputs[choice.index]
        ]

    def _begin(self, request: Request) -> list[Request]:
        """The other choices of a request, from here on requests of their own."""
        siblings = [sibling_of(request, index) for index in request.siblings]
        request.siblings = ()
        for sibling in siblings:
            self._live.add(sibling)
            self._scheduler.add(sibling)
        return siblings


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
