"""LangChain over `langchain-openai`: chats, streams, pictures, tools, structured output."""

from typing import Any, Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from report import SITE, holds, run, same

HOW: dict[str, Any] = {"base_url": SITE["url"] + "/v1", "api_key": "none", "max_retries": 0}
model = ChatOpenAI(model=SITE["model"], temperature=0, max_completion_tokens=300, **HOW)


class Seen(BaseModel):
    """What is there."""

    shape: Literal["circle", "square"]


@tool
def seen(shape: Literal["circle", "square"]) -> str:
    """Take a shape."""
    return shape


def chat() -> None:
    same(model.invoke(SITE["text"]).content, SITE["answer"])


def stream() -> None:
    same("".join(str(chunk.content) for chunk in model.stream(SITE["text"])), SITE["answer"])


async def asynchronous() -> None:
    same((await model.ainvoke(SITE["text"])).content, SITE["answer"])


def picture() -> None:
    same(model.invoke(SITE["messages"]).content, SITE["seen"])


def tools() -> None:
    found = model.bind_tools([seen], tool_choice="any", strict=True).invoke(SITE["text"])
    holds(seen.invoke(found.tool_calls[0]["args"]) in ("circle", "square"))


def structured() -> None:
    for method in ("json_schema", "function_calling"):
        found = model.with_structured_output(Seen, method=method, strict=True).invoke(
            SITE["messages"]
        )
        holds(isinstance(found, Seen), f"{method}: {found!r}")


def responses() -> None:
    found = ChatOpenAI(model=SITE["model"], temperature=0, use_responses_api=True, **HOW)
    same(found.invoke(SITE["text"]).text, SITE["answer"])


if __name__ == "__main__":
    run(chat, stream, asynchronous, picture, tools, structured, responses)
