"""Anthropic's client for Python: messages, streams, pictures, tools."""

from typing import Any

from anthropic import Anthropic, BadRequestError, beta_tool
from report import SITE, fresh, holds, run, same

client = Anthropic(base_url=SITE["url"], api_key="none", max_retries=0)
ASKED: Any = {
    "model": SITE["model"],
    "max_tokens": 200,
    "messages": [{"role": "user", "content": SITE["text"]}],
    "extra_body": {"temperature": 0},
}
TOOL: Any = {
    "name": "seen",
    "description": "what is there",
    "input_schema": {
        "type": "object",
        "properties": {"shape": {"enum": ["circle", "square"]}},
        "required": ["shape"],
        "additionalProperties": False,
    },
}


def message() -> None:
    found = client.messages.create(**ASKED)
    same([block.text for block in found.content if block.type == "text"], [SITE["answer"]])
    same(found.stop_reason, "end_turn")
    holds(found.usage.output_tokens > 0)


def stream() -> None:
    with client.messages.stream(**ASKED) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    same(text, SITE["answer"])
    same(final.stop_reason, "end_turn")


def picture() -> None:
    (asked,) = SITE["messages"]
    parts = []
    for part in asked["content"]:
        if part["type"] == "text":
            parts.append({"type": "text", "text": part["text"]})
        else:
            data = fresh(part["image_url"]["url"]).partition("base64,")[2]
            source = {"type": "base64", "media_type": "image/png", "data": data}
            parts.append({"type": "image", "source": source})
    messages = [{"role": "user", "content": parts}]
    found = client.messages.create(**{**ASKED, "messages": messages})
    same([block.text for block in found.content if block.type == "text"], [SITE["seen"]])


def tools() -> None:
    found = client.messages.create(**ASKED, tools=[TOOL], tool_choice={"type": "any"})
    same(found.stop_reason, "tool_use")
    call = found.content[0]
    holds(call.type == "tool_use" and call.input["shape"] in ("circle", "square"), str(call))


def streamed_tools() -> None:
    with client.messages.stream(**ASKED, tools=[TOOL], tool_choice={"type": "any"}) as events:
        final = events.get_final_message()
    call = final.content[0]
    holds(call.type == "tool_use" and call.input["shape"] in ("circle", "square"), str(call))


def tool_runner() -> None:
    calls: list[str] = []

    @beta_tool
    def seen(shape: str) -> str:
        """Take a shape.

        Args:
            shape: what is there
        """
        calls.append(shape)
        return "noted"

    runner = client.beta.messages.tool_runner(
        **{**ASKED, "max_tokens": 60},
        tools=[seen],
        tool_choice={"type": "tool", "name": "seen"},
        max_iterations=2,
    )
    said = list(runner)
    holds(calls or said[0].stop_reason == "max_tokens", str(said))


def counted() -> None:
    asked = {name: ASKED[name] for name in ("model", "messages")}
    count = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**ASKED).usage
    same(count, usage.input_tokens + (usage.cache_read_input_tokens or 0))


def errors() -> None:
    try:
        client.messages.create(**{**ASKED, "max_tokens": 0})
    except BadRequestError as error:
        holds("max_tokens" in str(error), str(error))
    else:
        raise AssertionError("max_tokens 0 was taken")


if __name__ == "__main__":
    run(message, stream, picture, tools, streamed_tools, tool_runner, counted, errors)
