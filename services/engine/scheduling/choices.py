"""The choices of a request: the others share its prompt and come to life once that is computed;
what each puts out, and where its answer ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import structs

from connectors.kv.base import KVArrival
from protocol.errors import TriptychError, error_info
from protocol.types import FinishReason, RequestOutput
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.live_requests import LiveRequests
from services.engine.scheduling.request import Request, choices_of, sibling_of
from services.engine.scheduling.request_times import RequestTimes
from services.engine.scheduling.scheduler import Scheduler
from services.engine.scheduling.seams import Sampled
from services.engine.scheduling.spare_room import trim

_COUNTED = (
    *("prompt_tokens", "cached_tokens", "received_tokens", "generation_tokens", "steps"),
    *("drafts", "draft_tokens", "accepted_draft_tokens"),
)


class SiblingChoices:
    """Until its prompt is computed a request stands for all of its choices, so that this is done
    once."""

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
        # Choices that go on from different tokens have different logits: each computes its own.
        if request.num_output or not chunk.samplers:
            return chunk
        return structs.replace(chunk, samplers=(request, *siblings))

    def adopted(self, request: Request, arrival: KVArrival) -> list[Sampled]:
        """The tokens that came with a request's KV, as if they were sampled here.

        Only where the request was placed here before they were known; a caller that asks later
        knows them, and says so by `emitted`.
        """
        if not request.adopts or set(arrival.outputs) != {request.index, *request.siblings}:
            if any(request.items_left):  # the last token, which is computed again, is of a medium
                self._scheduler.embeddings.pin(request)
            return []
        # All of it: the prompt's last token was to be computed again for its logits alone.
        request.num_computed = arrival.num_tokens
        choices = [request, *self._begin(request)]
        return [
            Sampled(choice, [token])
            for choice in choices
            for token in arrival.outputs[choice.index]
        ]

    def _begin(self, request: Request) -> list[Request]:
        """The other choices of a request, from here on requests of their own."""
        # They wait like others: by the next step their prompt's full blocks are a known prefix.
        siblings = [sibling_of(request, index) for index in request.siblings]
        request.siblings = ()
        size = self._scheduler.blocks.block_size
        for sibling in siblings:
            self._live.add(sibling)
            self._scheduler.add(sibling)
            sibling.num_matched = min(sibling.num_prompt, len(sibling.tokens) - 1) // size * size
            # At once: the first choice lets go of embeddings that these compute with again.
            self._scheduler.embeddings.pin(sibling)
        return siblings


class ChoiceOutputs:
    """Accounts for the tokens that choices gain. `counters` are the engine's, from its start on."""

    def __init__(
        self, scheduler: Scheduler, eos_token_ids: Collection[int], times: RequestTimes
    ) -> None:
        self.counters = dict.fromkeys(_COUNTED, 0)
        self._scheduler = scheduler
        self._eos_token_ids = eos_token_ids
        self._times = times

    def ends(self, sampled: Sampled) -> bool:
        """Whether a choice ends with what it gains."""
        reason, *_ = ending(sampled.request, sampled.token_ids, self._eos_token_ids)
        return sampled.failure is not None or reason is not None

    def gained(
        self, sampled: Sampled, *, adopted: bool = False, keeps_room: bool = False
    ) -> RequestOutput:
        """What a choice puts out; tokens that are `adopted` were counted where they were made. It
        `keeps_room` for tokens to come if its next step is launched."""
        request = sampled.request
        first = request.num_output == len(request.source.emitted.get(request.index, ()))
        reason, stop, count = ending(request, sampled.token_ids, self._eos_token_ids)
        tokens, logprobs = sampled.token_ids[:count], sampled.logprobs
        request.tokens += tokens
        # The tokens before the last were computed in the same step; the last has no KV yet.
        if count > 1:
            self._scheduler.computed(request, request.num_computed + count - 1)
        if not keeps_room:
            trim(request, self._scheduler.blocks)
        output = RequestOutput(
            request.source.request_id,
            request.index,
            tokens,
            logprobs[:count] if logprobs else None,
            reason,
            stop,
            pooled=sampled.pooled,
        )
        if first:
            self._times.first_output(request, adopted=adopted)
            self._count_prompt(request, output)
        self._count(sampled, 0 if adopted else count)
        if reason is not None:
            handed_over = request.hands_over and reason == "length"
            self._times.finished(request, handed_over=handed_over)
        return output

    def _count(self, sampled: Sampled, tokens: int) -> None:
        self.counters["generation_tokens"] += tokens
        if sampled.drafted:
            self.counters["drafts"] += 1
            self.counters["draft_tokens"] += sampled.drafted
            right = len(sampled.token_ids) - 1
            self.counters["accepted_draft_tokens"] += right
            if (drafts := self._scheduler.drafts) is not None:
                drafts.checked(sampled.request, sampled.drafted, right)

    def _count_prompt(self, request: Request, output: RequestOutput) -> None:
        output.cached_tokens = request.num_cached or 0
        if request.index != choices_of(request.source)[0]:
            return  # the choices of a request have one prompt
        output.prompt_logprobs = request.prompt_logprobs or None
        if request.received:  # its prompt is counted where it was computed
            self.counters["received_tokens"] += request.num_prompt
            return
        self.counters["prompt_tokens"] += request.num_prompt
        self.counters["cached_tokens"] += output.cached_tokens


def failure(request_id: str, index: int, error: TriptychError) -> RequestOutput:
    """What a choice that fails puts out."""
    return RequestOutput(request_id, index, finish_reason="error", error=error_info(error))


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
