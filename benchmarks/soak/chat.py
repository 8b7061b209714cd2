"""Chats as a client sends them: whole or as a stream, every answer with its tokens."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

_TIMEOUT_S = 120.0
_MAX_TOKENS = 32


class Failure(Exception):
    """What a client gets instead of an answer; `code` is empty unless it is one of ours."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome = {"status": status, "code": code, "detail": detail[:300]}


@dataclass(frozen=True)
class Answer:
    """Of one choice: its text, its token ids and, if asked for, by how much each was likelier than
    the next best (a difference of logits)."""

    text: str
    tokens: tuple[int, ...]
    leads: tuple[float, ...] = field(default=(), compare=False, repr=False)
    # Of a request for one: `tokens` has its length then
    vector: tuple[float, ...] = field(default=(), compare=False, repr=False)


class Question(Protocol):
    """What is asked. `kind`: in one word."""

    @property
    def kind(self) -> str: ...

    def openai_messages(self) -> list[dict[str, Any]]:
        """It as a chat's messages, media as data: URLs."""
        ...


@dataclass(frozen=True)
class Asked:
    """A question with its parameters."""

    question: Question
    params: tuple[tuple[str, Any], ...] = ()

    @property
    def path(self) -> str:
        """Where it is sent."""
        return "/v1/chat/completions"

    def body(self, stream: bool) -> bytes:
        body = {
            "model": "models/demo", "messages": self.question.openai_messages(), "temperature": 0,
            "max_tokens": _MAX_TOKENS, "return_token_ids": True, "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}), **dict(self.params),
        }  # fmt: skip
        return json.dumps(body).encode()

    def answer(self, response: http.client.HTTPResponse, stream: bool) -> Answer:
        """Read from a response with status 200; raises `Failure`."""
        return _streamed(response) if stream else _whole(response)


def ask(port: int, asked: Asked, stream: bool) -> Answer:
    """The answer to a request; raises `Failure`."""
    with sent(port, asked, stream) as connection:
        try:
            response = connection.getresponse()
            if response.status != 200:
                raise refusal(response)
            return asked.answer(response, stream)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Failure(0, "", f"{type(error).__name__}: {error}") from None


@contextlib.contextmanager
def sent(port: int, asked: Asked, stream: bool) -> Iterator[http.client.HTTPConnection]:
    """A connection on which the request has been sent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    with contextlib.closing(connection):
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", asked.path, asked.body(stream), headers)
        except OSError as error:
            raise Failure(0, "", f"{type(error).__name__}: {error}") from None
        yield connection


def refusal(response: http.client.HTTPResponse) -> Failure:
    """What stands in an answer that is not 200."""
    text = response.read().decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        return Failure(response.status, str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return Failure(response.status, "", text)


def _whole(response: http.client.HTTPResponse) -> Answer:
    answer = json.loads(response.read())
    choice = answer["choices"][0]
    return _counted(
        choice["message"]["content"], choice["token_ids"], _leads(choice), answer["usage"]
    )


def _leads(choice: Any) -> list[float]:
    positions = (choice.get("logprobs") or {}).get("content") or ()
    tops = ([top["logprob"] for top in position["top_logprobs"]] for position in positions)
    return [best - second for best, second in tops]


def _counted(text: str, tokens: list[int], leads: list[float], usage: Any) -> Answer:
    if usage is None or usage["completion_tokens"] != len(tokens):
        raise Failure(200, "", f"{len(tokens)} tokens came, but usage is {usage}")
    return Answer(text, tuple(tokens), tuple(leads))


def _streamed(response: http.client.HTTPResponse) -> Answer:
    parts: list[str] = []
    tokens: list[int] = []
    leads: list[float] = []
    usage = None
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            return _counted("".join(parts), tokens, leads, usage)
        event = json.loads(line[6:])
        if "error" in event:
            error = event["error"]
            raise Failure(200, str(error.get("code") or ""), str(error.get("message")))
        parts += [c["delta"].get("content") or "" for c in event["choices"]]
        tokens += [token for c in event["choices"] for token in c.get("token_ids") or ()]
        leads += [lead for c in event["choices"] for lead in _leads(c)]
        usage = event.get("usage") or usage
    raise Failure(200, "", "the stream ended without its end mark")
