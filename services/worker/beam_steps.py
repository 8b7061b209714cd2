"""A request for beam search as one request to the engine for every token.

The beams are choices that are continued by one token each. Their KV lies in the prefix cache from
one step to the next, save that of the last block.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Collection

import msgspec

from protocol.errors import RequestAborted, Unavailable
from protocol.sampling_checks import alternatives
from protocol.types import GenerateRequest, PositionLogprobs, RequestOutput, SamplingParams
from services.worker.beam_search import BeamSearch, EndedBeam

Steps = AsyncGenerator[list[RequestOutput], None]
Generate = Callable[[GenerateRequest], Steps]


async def beam_steps(generate: Generate, request: GenerateRequest, eos: Collection[int]) -> Steps:
    """Nothing for every step, so that it is known to go on; then all choices, the best first.
    `generate` runs a request in the engine. `emitted` is not read: a search begins anew."""
    sampling, began = request.sampling, time.monotonic()
    ends: dict[int, int | None] = {} if sampling.ignore_eos else dict.fromkeys(eos)
    ends |= {token: token for token in sampling.stop_token_ids if token not in ends}
    # The search decides what ends a beam; the engine says only what may follow.
    one = SamplingParams(
        max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=alternatives(sampling, len(ends))
    )
    search, cached = BeamSearch(sampling, ends), None
    if request.kv_transfer_params is not None:  # fetched once, and then a cached prefix
        await _last(generate, _left(msgspec.structs.replace(request, emitted={}), began, one))
        request = msgspec.structs.replace(request, kv_transfer_params=None)
        yield []
    while not search.done:
        outputs = await _last(generate, _left(_continued(request, search, one), began, None))
        cached = outputs[0].cached_tokens if cached is None else cached
        search.advance([_position(outputs[index]) for index in sorted(outputs)])
        yield []
    yield [_output(request, index, beam, cached) for index, beam in enumerate(search.best())]


def prompt_of_beams(request: GenerateRequest) -> GenerateRequest:
    """For a worker that hands its KV over: beams are searched where they are decoded, and the first
    token, which they do not need, must not end the request."""
    if not request.sampling.beam_width:
        return request
    sampling = msgspec.structs.replace(
        request.sampling, beam_width=0, ignore_eos=True, stop_token_ids=()
    )
    return msgspec.structs.replace(request, sampling=sampling)


def _continued(
    request: GenerateRequest, search: BeamSearch, one: SamplingParams
) -> GenerateRequest:
    """One token more for every beam."""
    sampling = msgspec.structs.replace(one, n=len(search.running), max_tokens=search.length + 1)
    tokens = {index: list(beam.token_ids) for index, beam in enumerate(search.running)}
    emitted = tokens if search.length else {}
    return msgspec.structs.replace(request, sampling=sampling, emitted=emitted)


def _left(
    request: GenerateRequest, began: float, sampling: SamplingParams | None
) -> GenerateRequest:
    """With what is left of the request's time."""
    left = request.deadline_s
    if left is not None:
        left = max(0.0, left - (time.monotonic() - began))
    sampling = sampling or request.sampling
    return msgspec.structs.replace(request, deadline_s=left, sampling=sampling)


async def _last(generate: Generate, request: GenerateRequest) -> dict[int, RequestOutput]:
    """The last output of each choice."""
    last: dict[int, RequestOutput] = {}
    async with contextlib.aclosing(generate(request)) as steps:
        async for outputs in steps:
            for output in outputs:
                if output.finish_reason == "abort":
                    raise RequestAborted("the request was aborted")
                last[output.index] = output
    return last


def _position(output: RequestOutput) -> PositionLogprobs:
    if not output.logprobs:
        raise Unavailable("the engine told no log-probabilities of a beam")
    return output.logprobs[-1]


def _output(
    request: GenerateRequest, index: int, ended: EndedBeam, cached: int | None
) -> RequestOutput:
    shown = request.sampling.logprobs is not None
    return RequestOutput(
        request.request_id,
        index,
        list(ended.beam.token_ids),
        list(ended.beam.positions) if shown else None,
        ended.reason,
        ended.stop,
        cached if index == 0 else None,
    )
