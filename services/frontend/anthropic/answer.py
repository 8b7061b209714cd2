"""A message in Anthropic's form: whole, and as server-sent events."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from protocol.errors import TriptychError
from protocol.types import RequestOutput
from services.frontend.answers.answering import Answering, Steps, with_first
from services.frontend.answers.output import Gain
from services.frontend.parsing.heard import CallPiece, Part

Json = dict[str, Any]
_DELTAS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "text": ("text_delta", "text"),
        "thinking": ("thinking_delta", "thinking"),
        "tool_use": ("input_json_delta", "partial_json"),
    }
)
_ERRORS: Mapping[int, str] = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)


def message_error(error: TriptychError) -> Json:
    """An error in Anthropic's form."""
    kind = _ERRORS.get(error.status, "api_error")
    said = error.to_openai()["error"]
    form: Json = {"type": kind, "message": said["message"]}
    if said["param"] == "thread":
        # Anthropic's own client goes on without one then, and sends the whole conversation.
        form["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": form}


def status_of_error(kind: str) -> int | None:
    """The status that stands for a type of Anthropic's errors, None if it is another word."""
    return next((status for status, named in _ERRORS.items() if named == kind), None)


@dataclass
class _Block:
    kind: str
    first: Json
    parts: list[str] = field(default_factory=list)

    def whole(self) -> Json:
        text = "".join(self.parts)
        if self.kind != "tool_use":
            return {**self.first, self.kind: text}
        try:
            return {**self.first, "input": msgspec.json.decode(text or "{}")}
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            # Arguments that were cut short: clients get what there is.
            return {**self.first, "input": {"partial_json": text}}


class MessageAnswer:
    """Of one request; `message_id` and `model` are shown to the client."""

    def __init__(self, message_id: str, model: str) -> None:
        self._message: Json = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        self._blocks: list[_Block] = []
        self._last = Gain(0, "", [])

    async def whole(self, answering: Answering, steps: Steps) -> Json:
        """The message, once the model has ended."""
        async with contextlib.aclosing(answering.gains(steps)) as all_gains:
            async for gains in all_gains:
                for _ in self._grown(gains):
                    pass
        content = [block.whole() for block in self._blocks]
        usage = self._usage(answering)
        return {**self._message, "content": content, **self._end(), "usage": usage}

    async def events(
        self, answering: Answering, first: list[RequestOutput], rest: Steps
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events, from `first` on, which has been awaited already. An error on the way
        becomes the event `error`, with which the stream ends."""
        try:
            async with contextlib.aclosing(answering.gains(with_first(first, rest))) as all_gains:
                begun = False
                async for gains in all_gains:
                    if not begun:
                        # The first output tells how much of the prompt was cached.
                        yield _sent([self._start(answering)])
                        begun = True
                    if data := _sent(self._grown(gains)):
                        yield data
            yield _sent(self._ended(answering))
        except TriptychError as error:
            yield self.failed(error)

    def failed(self, error: TriptychError) -> bytes:
        """The event that ends a stream in which an error happened."""
        return _sent([message_error(error)])

    def _start(self, answering: Answering) -> Json:
        usage = {**self._usage(answering), "output_tokens": 0}
        return {"type": "message_start", "message": {**self._message, "usage": usage}}

    def _grown(self, gains: Iterable[Gain]) -> Iterator[Json]:
        for gain in gains:
            if gain.finish_reason is not None:
                self._last = gain
            for part in gain.parts:
                yield from self._grown_by(part)

    def _grown_by(self, part: Part) -> Iterator[Json]:
        if isinstance(part, CallPiece):
            # A call's first piece alone has its id.
            if part.id:
                yield from self._begin("tool_use", id=part.id, name=part.name, input={})
            yield from self._add("tool_use", part.arguments)
        elif part.thought:
            # The form has a signature, but reasoning is not signed here.
            yield from self._add("thinking", part.text, signature="")
        else:
            yield from self._add("text", part.text)

    def _add(self, kind: str, text: str, **first: Any) -> Iterator[Json]:
        if not self._blocks or self._blocks[-1].kind != kind:
            yield from self._begin(kind, **{kind: ""}, **first)
        self._blocks[-1].parts.append(text)
        name, key = _DELTAS[kind]
        if text:
            yield self._told("content_block_delta", delta={"type": name, key: text})

    def _begin(self, kind: str, **first: Any) -> Iterator[Json]:
        yield from self._stop()
        block = _Block(kind, {"type": kind, **first})
        self._blocks.append(block)
        yield self._told("content_block_start", content_block=block.first)

    def _stop(self) -> Iterator[Json]:
        if self._blocks:
            yield self._told("content_block_stop")

    def _told(self, event: str, **fields: Any) -> Json:
        return {"type": event, "index": len(self._blocks) - 1, **fields}

    def _ended(self, answering: Answering) -> Iterator[Json]:
        yield from self._stop()
        yield {"type": "message_delta", "delta": self._end(), "usage": self._usage(answering)}
        yield {"type": "message_stop"}

    def _end(self) -> Json:
        """Why the model ended."""
        stop, found = self._last.finish_reason, self._last.stop_reason
        if stop == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        # A stop token is told by its id: only a text is one of the client's `stop_sequences`.
        if isinstance(found, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": found}
        called = any(block.kind == "tool_use" for block in self._blocks)
        return {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}

    def _usage(self, answering: Answering) -> Json:
        """What was cached is told apart from the rest of the prompt."""
        usage = answering.usage()
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
        return {
            "input_tokens": usage.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage.completion_tokens,
        }


def _sent(events: Iterable[Json]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))
        for event in events
    )
