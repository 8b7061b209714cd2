"""What workers answer on the routes that are passed on, checked as answers to chats are.

These routes differ in how a worker says that it gives a request up: an error, a finish reason, a
response that failed or was cancelled (`/v1/responses`), a message without a stop reason
(`/v1/messages`). What is malformed is passed on: not every route answers with JSON.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from protocol.errors import DeadlineExceeded, NotServing, RateLimited, TriptychError, Unavailable
from proxy.relay.response_validation import GIVEN_UP, refused_within
from proxy.upstream.answer import Answer
from proxy.upstream.failures import CallFailed
from proxy.upstream.sse import MAX_EVENT, data_of, events_of
from services.frontend.anthropic.answer import status_of_error

# A quote inside a JSON string has a backslash before it: of events that go well, few contain one of
# these, so few have to be decoded. One search takes as long as two for single words.
_SIGN = re.compile(rb'"(?:error|abort|failed|cancelled|message|message_delta)"')
_FAILED = ("failed", "cancelled")
# vLLM writes these before it computes, or with the first token. They say nothing of the answer.
_PROLOGUE = ("response.created", "response.queued", "response.in_progress", "message_start")
_OWN = (RateLimited, Unavailable, NotServing, DeadlineExceeded)
_STATUSES: Mapping[str, int] = MappingProxyType(
    {"invalid_prompt": 400, **{kind.code: kind.status for kind in _OWN}}
)


class _Part(msgspec.Struct):
    """A choice, or what an event says of a response or a message."""

    finish_reason: Any = None
    status: Any = None
    error: Any = None
    stop_reason: Any = None


class _Said(msgspec.Struct):
    """The part of an answer, or of an event of one, that tells how it ends."""

    type: Any = None  # kind of a response's or message's event
    status: Any = None  # of a whole response
    error: Any = None  # why it failed
    code: Any = None  # of an error that is told by itself
    message: Any = None  # of the same
    stop_reason: Any = None  # of a whole message
    choices: list[_Part] | None = None  # of a chat or completion
    response: _Part | None = None  # in an event of a response
    delta: _Part | str | None = None  # in an event of a message


class _Named(msgspec.Struct):
    type: Any = None


_SAID, _NAMED = msgspec.json.Decoder(_Said), msgspec.json.Decoder(_Named)


def check_passed(url: str, answer: Answer) -> Answer:
    """The answer. Raises `Refused` if it has an error, `CallFailed` if the worker gives the request
    up otherwise."""
    if b"json" in answer.content_type:
        _check(url, answer.body)
    return answer


async def checked_events(
    url: str, pieces: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Whole events of a worker's stream up to the one by which it gives the request up, for which
    it raises as `check_passed` does. A prologue waits for what follows it: as long as the client
    has had nothing, another worker may answer."""
    held, begun, size = list[bytes](), False, 0
    async with contextlib.aclosing(pieces):
        async for events in pieces:
            good, error = _good_of(url, events)
            if error is not None and not begun:
                raise error
            if good:
                held.append(good)
                size += len(good)
            # What is held was looked at when it came.
            if held and (begun or size > MAX_EVENT or not _is_prologue(good)):
                yield b"".join(held)
                held, begun = [], True
            if error is not None:
                raise error
    if held:
        yield b"".join(held)


def _good_of(url: str, events: bytes) -> tuple[bytes, TriptychError | None]:
    """The events before the first that gives the request up, and that one's error."""
    if _SIGN.search(events) is None:
        return events, None
    good = 0
    for event in events_of(events):
        try:
            _check(url, data_of(event))
        except TriptychError as error:
            return events[:good], error
        good += len(event)
    return events, None


def _is_prologue(events: bytes) -> bool:
    """Whether the answer itself has not begun."""
    return all(_type_of(data_of(event)) in _PROLOGUE for event in events_of(events))


def _type_of(data: bytes) -> Any:
    try:
        return _NAMED.decode(data).type
    except (ValueError, RecursionError):
        return None


def _check(url: str, data: bytes) -> None:
    if _SIGN.search(data) is None:
        return
    try:
        said = _SAID.decode(data)
    except (ValueError, RecursionError):
        return
    if (error := _error_of(said)) is not None:
        raise refused_within(url, error, _status_of(error))
    if _is_given_up(said):
        raise CallFailed(f"{url} gave the request up", "aborted")


def _error_of(said: _Said) -> Any:
    """An error of the answer, or of the response inside an event."""
    if said.error is None and said.type == "error":  # as OpenAI writes an event of a response
        return {"code": said.code, "message": said.message}
    if said.error is None and said.response is not None:
        return said.response.error
    return said.error


def _status_of(error: Any) -> int:
    """What stands for the word by which an error names its kind: 500 if none does."""
    words = (error.get("code"), error.get("type")) if isinstance(error, dict) else ()
    for word in words:
        if isinstance(word, str) and (status := _STATUSES.get(word) or status_of_error(word)):
            return status
    return 500


def _is_given_up(said: _Said) -> bool:
    if any(choice.finish_reason in GIVEN_UP for choice in said.choices or ()):
        return True
    if said.status in _FAILED or (said.response is not None and said.response.status in _FAILED):
        return True
    # vLLM has no stop reason for a message whose generation was aborted.
    if said.type == "message_delta":
        return isinstance(said.delta, _Part) and said.delta.stop_reason is None
    return said.type == "message" and said.stop_reason is None
