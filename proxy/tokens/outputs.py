"""Steps of a request as they come from workers: reading ahead, and what of them is news."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

from protocol.generate_answers import GenerateAnswer
from protocol.types import GenerateRequest, RequestOutput
from services.http.tasks import ended

_T = TypeVar("_T")


class ReadAhead:
    """An iterator whose first step is under way before anyone waits for it; a context manager that
    closes it."""

    def __init__(self, steps: AsyncGenerator[list[RequestOutput], None]) -> None:
        self._steps = steps
        self._next: asyncio.Future[list[RequestOutput] | None] | None = None

    async def __aenter__(self) -> ReadAhead:
        self._next = asyncio.ensure_future(anext(self._steps, None))
        return self

    async def next(self) -> list[RequestOutput] | None:
        """The next step, None after the last."""
        first, self._next = self._next, None
        return await (first if first is not None else anext(self._steps, None))

    async def __aexit__(self, *_: object) -> None:
        if self._next is not None:
            await ended(self._next)
        await self._steps.aclose()


async def unless_failed(work: Awaitable[_T], encoding: asyncio.Task[Any]) -> _T:
    """The result of `work`; a failure of the encode stage ends it at once with that failure."""
    if encoding.done():
        encoding.result()
        return await work
    task = asyncio.ensure_future(work)
    try:
        waiting: set[asyncio.Future[Any]] = {task, encoding}
        while not task.done():
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if encoding.done():
                encoding.result()
                waiting = {task}
        return task.result()
    finally:
        if not task.done():
            await ended(task)


def outputs_of(answer: GenerateAnswer) -> list[RequestOutput]:
    cached = answer.usage.cached_tokens if answer.usage is not None else None
    return [
        RequestOutput(
            answer.request_id,
            choice.index,
            choice.token_ids,
            choice.logprobs.content if choice.logprobs is not None else None,
            choice.finish_reason,
            choice.stop_reason,
            cached,
        )
        for choice in answer.choices
    ]


def fresh(outputs: list[RequestOutput], known: dict[int, int]) -> list[RequestOutput]:
    """`outputs` without the tokens that the client has from prefill; `known` counts, per choice
    that goes on, how many of those are still to come."""
    rest = []
    for output in uncounted(outputs):
        if output.index not in known:
            continue
        skip = min(known[output.index], len(output.token_ids))
        known[output.index] -= skip
        output.token_ids = output.token_ids[skip:]
        output.logprobs = output.logprobs[skip:] if output.logprobs is not None else None
        if output.token_ids or output.finish_reason is not None:
            rest.append(output)
    return rest


def uncounted(outputs: list[RequestOutput]) -> list[RequestOutput]:
    """Decode's count of cached tokens is not the prompt's: prefill's is."""
    for output in outputs:
        output.cached_tokens = None
    return outputs


def first(output: RequestOutput, request: GenerateRequest) -> RequestOutput:
    """Prefill's output as the client sees it: it ends `length` only because prefill hands over."""
    if output.finish_reason == "length" and len(output.token_ids) < request.sampling.max_tokens:
        output.finish_reason = None
    return output
