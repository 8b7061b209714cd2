"""A response around its output items: whole, and as server-sent events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import msgspec

from protocol.errors import TriptychError
from protocol.responses import ResponsesRequest
from protocol.types import RequestOutput
from services.frontend.answers.answering import Answering, Steps, with_first
from services.frontend.answers.output import Gain
from services.frontend.responses.output import OutputItems

Json = dict[str, Any]


class ResponseAnswer:
    """Of one request. `response` is what clients get, as far as it has come."""

    def __init__(self, request: ResponsesRequest, response_id: str, model: str) -> None:
        self._items = OutputItems()
        self._events = 0
        self._thought = 0  # tokens that told nothing but reasoning
        self._cut = False
        self.response: Json = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "model": model,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **_echoed(request),
        }

    async def whole(self, answering: Answering, steps: Steps) -> Json:
        """The response, once the model has ended."""
        async with contextlib.aclosing(answering.gains(steps)) as all_gains:
            async for gains in all_gains:
                for _ in self._grown(gains):
                    pass
        for _ in self._ended(answering):
            pass
        return self.response

    async def events(
        self, answering: Answering, first: list[RequestOutput], rest: Steps
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events, from `first` on, which has been awaited already. An error on the way
        becomes the event `response.failed`, with which the stream ends."""
        try:
            async with contextlib.aclosing(answering.gains(with_first(first, rest))) as all_gains:
                yield self._sent([self._state("created"), self._state("in_progress")])
                async for gains in all_gains:
                    if data := self._sent(self._grown(gains)):
                        yield data
            yield self._sent(self._ended(answering))
        except TriptychError as error:
            yield self.failed(error)

    def failed(self, error: TriptychError) -> bytes:
        """The event that ends a stream in which an error happened."""
        found = {"code": error.code, "message": error.to_openai()["error"]["message"]}
        self.response.update(status="failed", error=found, output=self._items.shown())
        return self._sent([self._state("failed")])

    def _grown(self, gains: Iterable[Gain]) -> Iterable[Json]:
        for gain in gains:
            self._cut |= gain.finish_reason == "length"
            # A token that ends the reasoning may begin the text: it counts as text.
            if gain.heard.reasoning and not (gain.text or gain.heard.calls):
                self._thought += len(gain.token_ids)
            yield from self._items.add(gain)

    def _ended(self, answering: Answering) -> Iterable[Json]:
        yield from self._items.close(complete=not self._cut)
        status = "incomplete" if self._cut else "completed"
        reason = {"reason": "max_output_tokens"} if self._cut else None
        self.response.update(
            status=status,
            incomplete_details=reason,
            output=self._items.shown(),
            usage=self._usage(answering),
        )
        yield self._state(status)

    def _usage(self, answering: Answering) -> Json:
        usage = answering.usage()
        details = usage.prompt_tokens_details
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": details.cached_tokens if details else 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._thought},
            "total_tokens": usage.total_tokens,
        }

    def _state(self, state: str) -> Json:
        return {"type": f"response.{state}", "response": self.response}

    def _sent(self, events: Iterable[Json]) -> bytes:
        data = b""
        for event in events:
            numbered = {**event, "sequence_number": self._events}
            self._events += 1
            data += b"event: %b\ndata: %b\n\n" % (
                event["type"].encode(),
                msgspec.json.encode(numbered),
            )
        return data


def _echoed(request: ResponsesRequest) -> Json:
    """What a response repeats of its request, with the defaults where that left it out."""
    reasoning, text = request.reasoning, request.text
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "store": request.store is not False,
        "temperature": request.temperature,
        "text": {"format": text.format if text and text.format else {"type": "text"}},
        "tool_choice": request.tool_choice or "auto",
        "tools": request.tools or [],
        "top_p": request.top_p,
        "truncation": "disabled",
        "user": request.user,
    }
