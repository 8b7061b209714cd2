"""Requests of the APIs that agents speak, through a proxy of either dialect, and what their answers
say."""

import json
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from protocol.request_fields import Route
from tests.conformance.asking import PROMPT, TOKENS, Door, Json, text_of
from tests.support.stack import call

PATHS: dict[Route, str] = {"responses": "/v1/responses", "messages": "/v1/messages"}
_BASES: dict[Route, Json] = {
    "responses": {"input": PROMPT, "max_output_tokens": TOKENS, "temperature": 0},
    "messages": {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": TOKENS,
        "temperature": 0,
    },
}


@dataclass(frozen=True)
class Said:
    """What an answer says; equal ones may differ in ids, times and what was cached."""

    text: str
    thought: str
    calls: tuple[tuple[str, Any], ...]  # names and arguments
    ended: str  # why
    prompt: int  # tokens
    output: int  # tokens
    cached: int = field(compare=False)  # tokens of the prompt
    whole: Json = field(compare=False)


@dataclass(frozen=True)
class Agent:
    """A client of one route. Its requests are greedy, of `TOKENS` tokens, unless they say
    otherwise; a field that is `...` is left out."""

    door: Door
    route: Route

    def body(self, **fields: Any) -> Json:
        body = {**_BASES[self.route], **fields}
        return {name: value for name, value in body.items() if value is not ...}

    def post(self, **fields: Any) -> tuple[int, Any]:
        return call(self.door.url + PATHS[self.route], self.body(**fields))

    def draw(self, **fields: Any) -> Said:
        """The whole answer; anything but a 200 fails."""
        status, answer = self.post(**fields)
        assert status == 200, answer
        return said(self.route, answer)

    def base(self) -> Said:
        """The whole answer to the request that says nothing more."""
        return said(self.route, self.door.once(self.door.url + PATHS[self.route], self.body()))

    def ask(self, **fields: Any) -> Said:
        """The answer that a stream tells, as does one that comes whole. A message's prompt is
        counted alike."""
        streamed = said(self.route, self.stream(**fields))
        assert self.draw(**fields) == streamed
        if self.route == "messages":
            assert self.count(**fields) == (200, {"input_tokens": streamed.prompt})
        return streamed

    def stream(self, **fields: Any) -> Json:
        """The whole answer that a stream's events tell of."""
        events = self.events(**fields)
        return of_response(events) if self.route == "responses" else of_message(events)

    def events(self, **fields: Any) -> list[Json]:
        """The events of a stream, whose names are their types."""
        data = json.dumps(self.body(**fields, stream=True)).encode()
        url, headers = self.door.url + PATHS[self.route], {"content-type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(url, data, headers), timeout=60
        ) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            parts = response.read().decode().strip().split("\n\n")
        events = []
        for part in parts:
            name, _, line = part.partition("\n")
            events.append(json.loads(line.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        return events

    def count(self, **fields: Any) -> tuple[int, Any]:
        """What /v1/messages/count_tokens answers."""
        return call(f"{self.door.url}{PATHS[self.route]}/count_tokens", self.body(**fields))

    def refused(self, param: str, **fields: Any) -> None:
        """A message's error has no place for the field: its text names it."""
        status, answer = self.post(**fields)
        assert status == 400, answer
        named = answer["error"]["param" if self.route == "responses" else "message"]
        assert named == param if self.route == "responses" else param in named, answer

    def same_as_chat(self, chat: Json, **fields: Any) -> Said:
        """The answer, which is that of a chat."""
        found = self.ask(**fields)
        answer = self.door.ask("chat", **{"ignore_eos": ..., **chat})
        assert (found.text, found.prompt) == (text_of(answer), answer["usage"]["prompt_tokens"])
        return found

    def templated(self, expected: str, **fields: Any) -> None:
        """The prompt is `expected`."""
        found = self.ask(**fields)
        answer = self.door.ask("completions", prompt=expected, ignore_eos=...)
        assert (found.text, found.prompt) == (text_of(answer), answer["usage"]["prompt_tokens"])


def said(route: Route, answer: Json) -> Said:
    """Of a whole answer."""
    usage = answer["usage"]
    if route == "messages":
        assert usage["cache_creation_input_tokens"] == 0
        blocks = answer["content"]
        return Said(
            text="".join(b["text"] for b in blocks if b["type"] == "text"),
            thought="".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
            calls=tuple((b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"),
            ended=f"{answer['stop_reason']} {answer['stop_sequence']}",
            prompt=usage["input_tokens"] + usage["cache_read_input_tokens"],
            output=usage["output_tokens"],
            cached=usage["cache_read_input_tokens"],
            whole=answer,
        )
    items = answer["output"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    return Said(
        text=_texts(items, "message"),
        thought=_texts(items, "reasoning"),
        calls=tuple((i["name"], i["arguments"]) for i in items if i["type"] == "function_call"),
        ended=f"{answer['status']} {answer['incomplete_details']}",
        prompt=usage["input_tokens"],
        output=usage["output_tokens"],
        cached=usage["input_tokens_details"]["cached_tokens"],
        whole=answer,
    )


def _texts(items: list[Json], kind: str) -> str:
    return "".join(p["text"] for item in items if item["type"] == kind for p in item["content"])


def of_response(events: list[Json]) -> Json:
    """The response that the last event has, if the others have told the same."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    first, second, *rest, last = events
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    response: Json = last["response"]
    assert last["type"] == f"response.{response['status']}"
    assert first["response"]["id"] == response["id"]
    told = dict.fromkeys(range(len(response["output"])), "")
    done: Json = {}
    for event in rest:
        if event["type"].endswith(".delta"):
            told[event["output_index"]] += event["delta"]
        if event["type"] == "response.output_item.done":
            done[event["output_index"]] = event["item"]
    assert list(done.values()) == response["output"]
    for index, item in enumerate(response["output"]):
        whole = (
            item["arguments"] if item["type"] == "function_call" else _texts([item], item["type"])
        )
        assert told[index] == whole
    return response


def of_message(events: list[Json]) -> Json:
    """The message that all events together tell of."""
    first, *rest, delta, last = events
    kinds = first["type"], delta["type"], last["type"]
    assert kinds == ("message_start", "message_delta", "message_stop")
    blocks: list[Json] = []
    told: list[str] = []
    for event in rest:
        assert event["index"] == len(blocks) - (event["type"] != "content_block_start")
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            told.append("")
        elif event["type"] == "content_block_delta":
            (text,) = (value for name, value in event["delta"].items() if name != "type")
            told[-1] += text
        else:
            assert event["type"] == "content_block_stop"
    content = [_block(block, text) for block, text in zip(blocks, told, strict=True)]
    begun = first["message"]["usage"]
    assert {**begun, "output_tokens": delta["usage"]["output_tokens"]} == delta["usage"]
    return {**first["message"], "content": content, **delta["delta"], "usage": delta["usage"]}


def _block(block: Json, text: str) -> Json:
    if block["type"] == "tool_use":
        return {**block, "input": json.loads(text or "{}")}
    return {**block, block["type"]: text}
