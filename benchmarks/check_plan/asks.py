"""Requests of a trace as a client sends them.

A text prompt is token ids, as many as the trace says, and its blocks are equal where the trace's
block keys are. Pictures go through a chat. A client allows every answer the same number of tokens,
as the simulator's do, and an answer ends where the trace says: mock workers' tokens are known in
advance, and the one that stands there is the request's stop token.
"""

from __future__ import annotations

import base64
import io
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from benchmarks.simulate.prompts import Picture, Session, TraceRequest
from benchmarks.simulate.simulation import MOST_TOKENS
from protocol.openai import ChatCompletionRequest
from protocol.types import GenerateRequest
from services.frontend.render import Frontend
from services.mock.tokens import Vocabulary, prompt_digest

WORDS = Vocabulary(270, 354)
"""Tokens of the demo model that are whole words, so that each is an event with text."""
_PLAIN = range(20, 270)  # tokens of prompts: bytes
_LETTERS = "QXZJVK"  # no two of which are one token
_PIXELS = 28  # of a picture's side, for a token
_TRIES = 10_000


@dataclass(frozen=True)
class RequestBody:
    """A request as it is sent. `path`: of the route; `body`: JSON."""

    path: str
    body: bytes


def text_asks(session: Session) -> Iterator[tuple[TraceRequest, RequestBody]]:
    """A session of prompts without pictures. Each turn begins with the turn before it and with the
    answer to that, as mock workers will give it."""
    ids: list[int] = []
    for turn in session.turns:
        if not ids:
            for key in turn.prompt_keys:
                ids += _tokens(key.hex(), turn.block_size)
        ids += _tokens(turn.name, turn.tokens - len(ids))
        answer, ending = ended_answer(ids, (), turn.output)
        body = {"prompt": list(ids), **ending}
        if turn.session:
            body["session_id"] = turn.session
        yield turn, RequestBody("/v1/completions", msgspec.json.encode(body))
        ids += answer


def _tokens(name: str, count: int) -> list[int]:
    return random.Random(name).choices(_PLAIN, k=count)


def ended_answer(
    ids: Sequence[int], items: Sequence[Any], length: int
) -> tuple[list[int], dict[str, Any]]:
    """Tokens of an answer of `length` tokens, and the fields by which a request asks for it: a seed
    with which its last token is in no other place before, and that token as the stop token."""
    digest = prompt_digest(ids, items)
    for seed in range(1, _TRIES):
        answer = WORDS.tokens(digest, seed, 0, 0, length)
        if answer[-1] not in answer[:-1]:
            return answer, {
                "max_tokens": MOST_TOKENS, "stop_token_ids": [answer[-1]], "seed": seed,
                "temperature": 1.0, "stream": True, "ignore_eos": True,
            }  # fmt: skip
    raise ValueError(f"no answer of {length} tokens ends with a token of its own")


class PictureAsks:
    """Chats of a trace with pictures, rendered as the proxy will render them, so that their tokens
    can be counted. Pictures begin where the trace says; marks between them and the chat's own
    tokens take the place of some of the question."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._urls: dict[str, str] = {}
        self._head = 0  # letters before the pictures; 0 until it is known

    async def ask(self, request: TraceRequest) -> RequestBody:
        if not self._head:
            probe = await self._rendered(_messages("Q", [self._url(request.items[0])], "Q"))
            self._head = request.items[0].offset - probe.mm_items[0].offset + 1
        system = _letters("system", self._head)
        urls = [self._url(item) for item in request.items]
        short = await self._rendered(_messages(system, urls, "Q"))
        question = _letters(request.name, max(1, request.tokens - len(short.token_ids) + 1))
        messages = _messages(system, urls, question)
        found = await self._rendered(messages)
        _, ending = ended_answer(found.token_ids, found.mm_items, request.output)
        body = msgspec.json.encode({"messages": messages, **ending})
        return RequestBody("/v1/chat/completions", body)

    async def _rendered(self, messages: list[dict[str, Any]]) -> GenerateRequest:
        chat = msgspec.convert({"messages": messages, "max_tokens": 1}, ChatCompletionRequest)
        return (await self._frontend.render_chat(chat, request_id="ask")).generate

    def _url(self, item: Picture) -> str:
        if item.mm_hash not in self._urls:
            self._urls[item.mm_hash] = picture_url(item)
        return self._urls[item.mm_hash]


def picture_url(item: Picture) -> str:
    """A grey square that becomes `item.tokens` tokens, with the item's name in the file."""
    side = math.isqrt(item.tokens) * _PIXELS
    named, file = PngInfo(), io.BytesIO()
    named.add_text("name", item.mm_hash)
    Image.new("L", (side, side)).save(file, "PNG", pnginfo=named)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _letters(name: str, count: int) -> str:
    return "".join(random.Random(name).choices(_LETTERS, k=count))


def _messages(system: str, urls: Sequence[str], question: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": [*parts, {"type": "text", "text": question}]},
    ]
