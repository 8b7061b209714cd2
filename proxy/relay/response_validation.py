"""What workers answer, checked before a byte of it reaches a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from protocol.bounds import INT32_MAX
from proxy.upstream.answer import Answer
from proxy.upstream.failures import CallFailed, Refused
from proxy.upstream.sse import data_of, events_of

_T = TypeVar("_T")
GIVEN_UP = ("abort", "error")
"""Finish reasons of a worker that has given an answer up."""
# A quote inside a JSON string has a backslash before it: of answers that contain neither, none says
# that it was given up, and few others have to be decoded.
_ABORT, _ERROR = (b'"%b"' % reason.encode() for reason in GIVEN_UP)
_LONGEST_WORDS = 200


class Chat(msgspec.Struct):
    """The part of a whole answer that tells it from garbage; the rest is not looked at."""

    choices: list[msgspec.Raw]


class Prefilled(Chat, kw_only=True):
    """`usage` is not checked: an answer is good without it."""

    kv_transfer_params: dict[str, Any] | None = None
    usage: Any = None

    @property
    def handed(self) -> dict[str, Any] | None:
        """The KV handles; None if there are none."""
        return self.kv_transfer_params or None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the worker did not have to compute; None if it does not say."""
        usage = self.usage if isinstance(self.usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        count = details.get("cached_tokens") if isinstance(details, dict) else None
        return count if type(count) is int and 0 <= count <= INT32_MAX else None


class Encoded(Chat, kw_only=True):
    ec_transfer_params: dict[str, Any] | None = None


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    error: dict[str, Any] | None = None


class _Choice(msgspec.Struct):
    finish_reason: Any = None


class _Ending(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: Any = None


_ENDING = msgspec.json.Decoder(_Ending)
_CHAT, _PREFILLED = msgspec.json.Decoder(Chat), msgspec.json.Decoder(Prefilled)
_ENCODED, _EVENT = msgspec.json.Decoder(Encoded), msgspec.json.Decoder(_Event)


def check_status(url: str, answer: Answer) -> None:
    """Raises `Refused` unless it is a 200."""
    if answer.status != 200:
        raise Refused(url, answer)


def check_whole(url: str, answer: Answer) -> None:
    """Raises `Refused`, or `CallFailed` unless it is a whole chat or text completion."""
    check_status(url, answer)
    _decoded(url, answer, _CHAT)


def prefilled(url: str, answer: Answer) -> Prefilled:
    """What a prefill worker's answer says; raises as `check_whole` does."""
    check_status(url, answer)
    return _decoded(url, answer, _PREFILLED)


def encoded(url: str, answer: Answer) -> dict[str, Any]:
    """`ec_transfer_params` in an encode worker's answer; raises as `check_whole` does."""
    check_status(url, answer)
    found = _decoded(url, answer, _ENCODED)
    return found.ec_transfer_params or {}


def check_stream(url: str, answer: Answer) -> None:
    """Raises `Refused`, or `CallFailed` unless it is an event stream whose first event is one. The
    events that came with that must not give the answer up."""
    check_status(url, answer)
    if not answer.is_stream:
        raise _wrong_type(url, answer)
    data = _first_data(answer.body)
    if data == b"[DONE]":
        raise CallFailed(f"{url} ended its stream before it began", "cut_short")

    message = f"{url} began its stream with something that is no event"
    try:
        event = _parsed(data, _EVENT)
    except ValueError:
        raise CallFailed(message, "garbage") from None
    # vLLM answers 200 before it computes: what it refuses then is the first event.
    if event.error is not None:
        raise refused_within(url, event.error)
    if event.choices is None:
        raise CallFailed(message, "garbage")
    if _may_give_up(answer.body):
        for each in events_of(answer.body):
            _check_goes_on(url, data_of(each))


def going_on(url: str, sink: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """`sink`, for whole events of a worker's stream. One by which the worker gives the answer up
    does not get there, but those before it do: `CallFailed` or `Refused` is raised."""

    def feed(events: bytes) -> None:
        if not _may_give_up(events):
            sink(events)
            return
        good = 0
        try:
            for event in events_of(events):
                _check_goes_on(url, data_of(event))
                good += len(event)
        finally:
            if good:
                sink(events[:good])

    return feed


def refused_within(url: str, error: Any, otherwise: int = 500) -> Refused:
    """What a worker says by this `error` in an answer that began as a good one. `otherwise`: the
    status of an error without one."""
    said = error if isinstance(error, dict) else {"message": str(error)[:_LONGEST_WORDS]}
    code = said.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else otherwise
    return Refused(url, Answer(status, b"application/json", msgspec.json.encode({"error": said})))


def _may_give_up(data: bytes) -> bool:
    return _ABORT in data or _ERROR in data


def _check_goes_on(url: str, data: bytes) -> None:
    """`Refused` if an answer, or an event of one, has an error, and `CallFailed` if it gives the
    answer up otherwise. What is malformed is judged elsewhere."""
    if not _may_give_up(data):
        return
    try:
        said = _parsed(data, _ENDING)
    except ValueError:
        return
    if said.error is not None:
        raise refused_within(url, said.error)
    if any(choice.finish_reason in GIVEN_UP for choice in said.choices or ()):
        raise CallFailed(f"{url} gave the request up", "aborted")


def _first_data(body: bytes) -> bytes:
    start = 0 if body.startswith(b"data:") else body.find(b"\ndata:") + 1
    end = body.find(b"\n", start)
    return body[start + 5 : end].strip()


def _decoded(url: str, answer: Answer, decoder: msgspec.json.Decoder[_T]) -> _T:
    if b"json" not in answer.content_type:
        raise _wrong_type(url, answer)
    try:
        found = _parsed(answer.body, decoder)
    except ValueError:
        message = f"{url} answered with something that is not valid JSON"
        raise CallFailed(message, "garbage") from None
    _check_goes_on(url, answer.body)
    return found


def _parsed(data: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    """`ValueError` if it is malformed or of another type. Members that the type does not have must
    be UTF-8 too."""
    try:
        if not data.isascii():
            data.decode()
        return decoder.decode(data)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _wrong_type(url: str, answer: Answer) -> CallFailed:
    kind = answer.content_type.decode("latin-1") or "no content type"
    return CallFailed(f"{url} answered with the wrong content type: {kind[:80]}", "wrong_type")
