"""Requests, and what makes two answers the same."""

import contextlib
import http.client
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from scripts.interop.vllm import post
from tests.support.clients import body_of
from tests.support.conversations import LONG, asking, picture
from tests.support.reference import Messages

TOKENS = 16
TIE = 1e-3
_TIMEOUT_S = 120.0
_CHAT = "/v1/chat/completions"

CASES: Mapping[str, Messages] = {
    "text": asking("Hello"),
    "long text": asking(LONG),
    "one picture": asking(picture(1), "What is in this image?"),
    "two pictures": asking(picture(2), "First this,", picture(3, 320, 200), "then that. Compare."),
    "the same picture twice": asking(picture(1), "and again", picture(1), "the same?"),
    "a picture seen before": asking("Once more:", picture(2), "What is it?"),
    "a picture in an earlier turn": [
        *asking(picture(4), "What is it?"),
        {"role": "assistant", "content": [{"type": "text", "text": "A picture."}]},
        *asking("Which colour?"),
    ],
}


@dataclass(frozen=True)
class Outcome:
    """Greedy tokens, how far each was ahead of the next best (nats), and what the client sees."""

    token_ids: Sequence[int]
    leads: Sequence[float]
    text: str
    usage: Sequence[int]

    def differs(self, other: "Outcome") -> str:
        """Empty if it is the same answer: all tokens, or all up to a tie that rounding decides."""
        if self.usage != other.usage:
            return f"usage {self.usage}, not {other.usage}"
        pairs = zip(self.token_ids, other.token_ids, strict=True)
        place = next((i for i, (one, two) in enumerate(pairs) if one != two), None)
        if place is None:
            return "" if self.text == other.text else f"text {self.text!r}, not {other.text!r}"
        lead = min(self.leads[place], other.leads[place])
        return "" if lead < TIE else f"token {place} differs, which was {lead:.3f} ahead"


def body(messages: Messages, stream: bool, model: str = "tiny") -> dict[str, Any]:
    asked = body_of(
        messages, model=model, max_tokens=TOKENS, ignore_eos=True, logprobs=True, top_logprobs=2
    )
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return asked


def ask(url: str, messages: Messages, stream: bool, model: str = "tiny") -> Outcome:
    """One request; an error raises."""
    answer = post(url + _CHAT, body(messages, stream, model), _TIMEOUT_S)
    return _streamed(answer) if stream else _whole(json.loads(answer))


def ask_all(
    url: str, stream: bool, cases: Mapping[str, Messages] = CASES, model: str = "tiny"
) -> dict[str, Outcome]:
    """Every case at once."""
    with ThreadPoolExecutor(len(cases)) as pool:
        outcomes = pool.map(lambda messages: ask(url, messages, stream, model), cases.values())
        return dict(zip(cases, outcomes, strict=True))


def leave(url: str, messages: Messages) -> bool:
    """Ask for a long answer and close the connection after its first event; whether one came."""
    asked = {**body(messages, True), "max_tokens": 1500}
    headers = {"content-type": "application/json"}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("POST", _CHAT, json.dumps(asked), headers)
        return connection.getresponse().readline().startswith(b"data: {")


def _whole(answer: Any) -> Outcome:
    choice = answer["choices"][0]
    leads = _leads(choice["logprobs"])
    return Outcome(
        choice["token_ids"], leads, choice["message"]["content"], _usage(answer["usage"])
    )


def _streamed(answer: bytes) -> Outcome:
    events = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    token_ids: list[int] = []
    leads: list[float] = []
    text, usage = "", [0, 0]
    for event in map(json.loads, events[:-1]):
        assert "error" not in event, event
        if event.get("usage"):
            usage = _usage(event["usage"])
        for choice in event["choices"]:
            token_ids += choice.get("token_ids") or []
            leads += _leads(choice.get("logprobs"))
            text += choice["delta"].get("content") or ""
    return Outcome(token_ids, leads, text, usage)


def _leads(logprobs: Any) -> list[float]:
    places = logprobs["content"] if logprobs else []
    pairs = [[option["logprob"] for option in place["top_logprobs"]] for place in places]
    return [pair[0] - pair[1] for pair in pairs]


def _usage(usage: Any) -> list[int]:
    return [usage["prompt_tokens"], usage["completion_tokens"]]
