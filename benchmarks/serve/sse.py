"""Server-sent events, and the part of OpenAI's stream chunks that a benchmark reads.

Event framing follows the HTML standard, section 9.2.6 (https://html.spec.whatwg.org), of which an
API stream needs the `data` field only.
"""

from typing import Any

import msgspec

DONE = b"[DONE]"


class SSEParser:
    """Turns the pieces of a byte stream into the data of its events.

    Pieces may end anywhere, also inside a line ending or a UTF-8 character.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of the events that `piece` completes."""
        buffer = (self._rest + piece).replace(b"\r\n", b"\n")
        # A final CR may be the first half of CRLF.
        held = b"\r" if buffer.endswith(b"\r") else b""
        body = buffer[: len(buffer) - len(held)].replace(b"\r", b"\n")
        *lines, rest = body.split(b"\n")
        self._rest = rest + held
        return [event for line in lines if (event := self._line(line)) is not None]

    def close(self) -> list[bytes]:
        """Data of a last event whose blank line never came, if there is one."""
        return [*self.feed(b"\n"), *self.feed(b"\n")]

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        return None


class Delta(msgspec.Struct):
    """What a chat chunk adds to the answer."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct):
    """Chat chunks have a delta, completion chunks a text."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_token(self) -> bool:
        """Whether the chunk stands for a token: empty content does (a special token, or an
        incomplete character), except beside the role, which opens a stream."""
        if self.delta is None:
            return self.text is not None
        delta = self.delta
        if delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls:
            return True
        return delta.content is not None and delta.role is None

    @property
    def added(self) -> str:
        """The text that the chunk adds to the answer."""
        return (self.delta.content if self.delta is not None else self.text) or ""


class Usage(msgspec.Struct):
    """Token counts of the whole request."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Chunk(msgspec.Struct):
    """One event of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


def error_text(body: bytes) -> str:
    """What an error body of OpenAI's, FastAPI's or any other form says, in one line."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return " ".join(body[:300].decode(errors="replace").split())
    return describe_error(value)


def describe_error(value: Any) -> str:
    """The message inside a decoded error object."""
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(key):
            return describe_error(value[key])
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()[:300]
