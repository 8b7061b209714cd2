"""From an engine's outputs to the answer of `/inference/v1/generate`, counted."""

from __future__ import annotations

from protocol.errors import InvalidRequest
from protocol.generate import ChoiceBody, GenerateAnswer, LogprobsBody, UsageBody, answer_of
from protocol.types import GenerateRequest, RequestOutput


class Usage:
    """Token counts of one request."""

    def __init__(self, request: GenerateRequest) -> None:
        self.prompt = len(request.token_ids)
        self.completion = sum(len(tokens) for tokens in request.emitted.values())
        self.cached = 0

    def count(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            self.completion += len(output.token_ids)
            self.cached = max(self.cached, output.cached_tokens or 0)

    def step(self, outputs: list[RequestOutput]) -> GenerateAnswer:
        """One event of a stream, counted. It has the usage so far if it tells what was cached."""
        self.count(outputs)
        tells = any(output.cached_tokens is not None for output in outputs)
        return answer_of(outputs, self.body() if tells else None)

    def body(self) -> UsageBody:
        return UsageBody(self.prompt, self.completion, self.cached)


def whole_answer(request: GenerateRequest, outputs: list[RequestOutput]) -> GenerateAnswer:
    """All outputs of a request as one answer, choices in order."""
    usage = Usage(request)
    usage.count(outputs)
    choices: dict[int, ChoiceBody] = {}
    for output in outputs:
        choice = choices.setdefault(output.index, ChoiceBody(output.index, []))
        choice.token_ids += output.token_ids
        choice.finish_reason = output.finish_reason or choice.finish_reason
        choice.stop_reason = output.stop_reason
        if output.logprobs:
            choice.logprobs = choice.logprobs or LogprobsBody([])
            choice.logprobs.content += output.logprobs
    kv = next((o.kv_transfer_params for o in outputs if o.kv_transfer_params), None)
    ordered = [choices[index] for index in sorted(choices)]
    return GenerateAnswer(request.request_id, ordered, usage.body(), kv)


def check_spans(request: GenerateRequest) -> None:
    """`InvalidRequest` unless the placeholder spans lie apart, in order, inside the prompt."""
    done = 0
    for item in request.mm_items:
        if item.length < 1 or item.offset < done or item.end > len(request.token_ids):
            raise InvalidRequest(
                f"placeholder span {item.offset}+{item.length} overlaps another or leaves "
                "the prompt",
                param="features",
            )
        done = item.end
