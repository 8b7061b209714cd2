"""LiteLLM: chats, streams, pictures, tools, structured output, text completions."""

import os
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch its prices from the network

import litellm
from pydantic import BaseModel
from report import SITE, holds, run, same

TURN = [{"role": "user", "content": SITE["text"]}]
HOW: dict[str, Any] = {
    "model": f"hosted_vllm/{SITE['model']}",
    "api_base": SITE["url"] + "/v1",
    "api_key": "none",
    "temperature": 0,
    "num_retries": 0,
}


class Seen(BaseModel, extra="forbid"):
    shape: Literal["circle", "square"]


TOOL = {"type": "function", "function": {"name": "seen", "parameters": Seen.model_json_schema()}}


def chat() -> None:
    found = litellm.completion(messages=TURN, **HOW)
    same(found.choices[0].message.content, SITE["answer"])
    holds(found.usage.completion_tokens > 0)


def stream() -> None:
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in litellm.completion(messages=TURN, stream=True, **HOW)
        if chunk.choices
    ]
    same("".join(pieces), SITE["answer"])


async def asynchronous() -> None:
    found = await litellm.acompletion(messages=TURN, **HOW)
    same(found.choices[0].message.content, SITE["answer"])


def picture() -> None:
    found = litellm.completion(messages=SITE["messages"], **HOW)
    same(found.choices[0].message.content, SITE["seen"])


def tools() -> None:
    # Under "hosted_vllm" LiteLLM leaves additionalProperties out, and the toy model finds no end.
    how = {**HOW, "model": f"openai/{SITE['model']}"}
    found = litellm.completion(messages=TURN, tools=[TOOL], tool_choice="required", **how)
    call = found.choices[0].message.tool_calls[0].function
    same(call.name, "seen")
    holds(Seen.model_validate_json(call.arguments))


def structured() -> None:
    found = litellm.completion(messages=SITE["messages"], response_format=Seen, **HOW)
    holds(Seen.model_validate_json(found.choices[0].message.content))


def text() -> None:
    how = {**HOW, "model": f"text-completion-openai/{SITE['model']}"}
    found = litellm.text_completion(prompt=SITE["text"], echo=True, max_tokens=4, **how)
    holds(found.choices[0].text.startswith(SITE["text"]), found.choices[0].text)


if __name__ == "__main__":
    run(chat, stream, asynchronous, picture, tools, structured, text)
