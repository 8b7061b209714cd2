"""Requests of either route through a proxy of either dialect, and what their answers say."""

import json
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Literal

from protocol.request_fields import Route
from tests.support.stack import call

Dialect = Literal["tokens", "openai"]
DIALECTS: tuple[Dialect, ...] = ("tokens", "openai")
PATHS: dict[Route, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
PROMPT = "How many circles are there?"
TOKENS = 2  # the first is from the prompt's worker, the second from the decoding one
Json = dict[str, Any]


@dataclass
class Door:
    """A proxy. Requests are greedy, of `TOKENS` tokens, unless they say otherwise."""

    dialect: Dialect
    url: str
    worker: str  # its URL
    known: dict[str, Any] = field(default_factory=dict)  # what need not be asked for again

    def body(self, route: Route, **fields: Any) -> Json:
        asked: Json = (
            {"prompt": PROMPT}
            if route == "completions"
            else {"messages": [{"role": "user", "content": PROMPT}]}
        )
        body = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True,
                "return_token_ids": True, **asked, **fields}  # fmt: skip
        return {name: value for name, value in body.items() if value is not ...}

    def post(self, route: Route, **fields: Any) -> tuple[int, Any]:
        return call(self.url + PATHS[route], self.body(route, **fields))

    def ask(self, route: Route, **fields: Any) -> Json:
        """The whole answer; anything but a 200 fails."""
        status, answer = self.post(route, **fields)
        assert status == 200, answer
        return dict(answer)

    def refused(self, route: Route, param: str, **fields: Any) -> None:
        status, answer = self.post(route, **fields)
        assert (status, answer["error"]["param"]) == (400, param), answer

    def stream(self, route: Route, **fields: Any) -> list[Json]:
        """The events of a stream, which ends as it must."""
        data = json.dumps(self.body(route, stream=True, **fields)).encode()
        headers = {"content-type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(self.url + PATHS[route], data, headers), timeout=60
        ) as response:
            lines = [line for line in response.read().decode().split("\n\n") if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def base(self, route: Route) -> Json:
        """The answer to the request that says nothing more."""
        return dict(self.once(self.url + PATHS[route], self.body(route)))

    def once(self, url: str, body: Json) -> Any:
        """The answer to a request that is sent one time."""
        asked = json.dumps([url, body])
        if asked not in self.known:
            status, answer = call(url, body)
            assert status == 200, answer
            self.known[asked] = answer
        return self.known[asked]

    def tokenize(self, text: str) -> list[int]:
        return list(self.once(f"{self.worker}/tokenize", {"prompt": text})["tokens"])

    @property
    def x(self) -> int:
        """A token that spells x."""
        (token,) = self.tokenize("x")
        return token

    @property
    def eos(self) -> int:
        (token,) = self.tokenize("<|im_end|>")
        return token


def text_of(answer: Json, index: int = 0) -> str:
    """Of a whole answer, or of a chunk."""
    choice = answer["choices"][index]
    said = choice.get("message") or choice.get("delta") or choice
    return str(said.get("text" if said is choice else "content") or "")


def ids_of(answer: Json, index: int = 0) -> list[int]:
    return list(answer["choices"][index]["token_ids"])


def prompt_ids_of(answer: Json) -> list[int]:
    """Of a whole answer, or of a chunk that has them."""
    found = answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]
    return list(found)


def logprobs_of(answer: Json) -> tuple[list[str], list[float]]:
    """(tokens, their log-probabilities) in either form."""
    found = answer["choices"][0]["logprobs"]
    if "content" in found:
        return [e["token"] for e in found["content"]], [e["logprob"] for e in found["content"]]
    return found["tokens"], found["token_logprobs"]
