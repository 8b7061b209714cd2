"""What workers answer, checked before a byte of it reaches a client."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.errors import TriptychError, UpstreamError, from_openai
from proxy.relay.connection import Answer, Broken

_BUSY = (429, 503)
_RETRYABLE = (408, 429, 500, 502, 503, 504)


class Refused(Exception):
    """A worker answered with an error; `answer` is what it said.

    `again`: another worker may do better. `charged`: it speaks against this one.
    """

    def __init__(self, url: str, answer: Answer) -> None:
        super().__init__(f"{url} answered HTTP {answer.status}")
        self.url = url
        self.answer = answer
        self.again = answer.status in _RETRYABLE or not 400 <= answer.status < 500
        self.charged = self.again and answer.status not in _BUSY

    @property
    def error(self) -> TriptychError:
        """In our own tree; 503 and 429 keep what they say of when to come again."""
        try:
            content: Any = msgspec.json.decode(self.answer.body)
        except msgspec.DecodeError:
            content = None
        error = from_openai(self.answer.status, content)
        error.code = type(error).code  # a worker's own words are no labels for metrics
        if error.status in _BUSY:
            text = self.answer.retry_after
            error.retry_after_s = float(text) if text.isdigit() else 1.0
        elif error.status >= 500 and error.status not in (502, 504):
            error = UpstreamError(f"{self.url}: {error.message}")
        return error


class Chat(msgspec.Struct):
    """The part of a whole answer that tells it from garbage; the rest is not looked at."""

    choices: list[msgspec.Raw]


class Prefilled(Chat, kw_only=True):
    kv_transfer_params: dict[str, Any] | None = None


class Encoded(Chat, kw_only=True):
    ec_transfer_params: dict[str, Any] | None = None


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    error: dict[str, Any] | None = None


_CHAT = msgspec.json.Decoder(Chat)
_PREFILLED = msgspec.json.Decoder(Prefilled)
_ENCODED = msgspec.json.Decoder(Encoded)
_EVENT = msgspec.json.Decoder(_Event)


def check_status(url: str, answer: Answer) -> None:
    """Raises `Refused` unless it is a 200."""
    if answer.status != 200:
        raise Refused(url, answer)


def check_whole(url: str, answer: Answer) -> None:
    """Raises `Refused`, or `Broken` unless it is a whole chat or text completion."""
    check_status(url, answer)
    _decoded(url, answer, _CHAT)


def prefilled(url: str, answer: Answer) -> dict[str, Any] | None:
    """The KV handles in a prefill worker's answer; raises as `check_whole` does."""
    check_status(url, answer)
    found: Prefilled = _decoded(url, answer, _PREFILLED)
    return found.kv_transfer_params or None


def encoded(url: str, answer: Answer) -> dict[str, Any]:
    """`ec_transfer_params` in an encode worker's answer; raises as `check_whole` does."""
    check_status(url, answer)
    found: Encoded = _decoded(url, answer, _ENCODED)
    return found.ec_transfer_params or {}


def check_stream(url: str, answer: Answer) -> None:
    """Raises `Refused`, or `Broken` unless it is an event stream whose first event is one."""
    check_status(url, answer)
    if not answer.is_stream:
        raise _wrong_type(url, answer)
    data = _first_data(answer.body)
    if data == b"[DONE]":
        raise Broken(f"{url} ended its stream before it began", "cut_short")
    try:
        event = _EVENT.decode(data)
    except msgspec.DecodeError:
        raise Broken(f"{url} began its stream with nonsense", "garbage") from None
    if event.error is not None:
        code = event.error.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        body = msgspec.json.encode({"error": event.error})
        raise Refused(url, Answer(status, b"application/json", body))
    if event.choices is None:
        raise Broken(f"{url} began its stream with nonsense", "garbage")


def _first_data(body: bytes) -> bytes:
    start = 0 if body.startswith(b"data:") else body.find(b"\ndata:") + 1
    end = body.find(b"\n", start)
    return body[start + 5 : end].strip()


def _decoded(url: str, answer: Answer, decoder: msgspec.json.Decoder[Any]) -> Any:
    if b"json" not in answer.content_type:
        raise _wrong_type(url, answer)
    try:
        return decoder.decode(answer.body)
    except msgspec.DecodeError:
        raise Broken(f"{url} answered with nonsense", "garbage") from None


def _wrong_type(url: str, answer: Answer) -> Broken:
    kind = answer.content_type.decode("latin-1") or "no content type"
    return Broken(f"{url} answered with the wrong content type: {kind[:80]}", "wrong_type")
