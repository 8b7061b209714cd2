"""`openai` for Python: chats, completions and responses, whole, streamed, parsed, with tools."""

import json
from enum import Enum
from typing import Any

import openai
from openai import AsyncOpenAI, BadRequestError, OpenAI
from pydantic import BaseModel
from report import SITE, fresh, holds, run, same

HOW: dict[str, Any] = {"base_url": SITE["url"] + "/v1", "api_key": "none", "max_retries": 0}
client = OpenAI(**HOW)
MODEL, TEXT, ANSWER = SITE["model"], SITE["text"], SITE["answer"]
ASKED: Any = {"model": MODEL, "messages": [{"role": "user", "content": TEXT}], "temperature": 0}
SEEN: Any = {"model": MODEL, "messages": SITE["messages"], "temperature": 0}


class Shape(Enum):
    circle = "circle"
    square = "square"


class Seen(BaseModel):
    shape: Shape
    round: bool


TOOL: Any = openai.pydantic_function_tool(Seen, name="seen")


def models() -> None:
    same([card.id for card in client.models.list()], [MODEL])
    same(client.models.retrieve(MODEL).id, MODEL)


def chat() -> None:
    answer = client.chat.completions.create(**ASKED)
    same(answer.choices[0].message.content, ANSWER)
    same(answer.choices[0].finish_reason, "stop")
    usage = answer.usage
    holds(usage and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens)


def picture() -> None:
    answer = client.chat.completions.create(**SEEN)
    same(answer.choices[0].message.content, SITE["seen"])


def streamed_chat() -> None:
    chunks = list(
        client.chat.completions.create(**SEEN, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    same(text, SITE["seen"])
    usage = chunks[-1].usage
    holds(usage and usage.completion_tokens > 0)


async def asynchronous() -> None:
    async with AsyncOpenAI(**HOW) as asynchronous_client:
        answer = await asynchronous_client.chat.completions.create(**ASKED)
        same(answer.choices[0].message.content, ANSWER)
        stream = await asynchronous_client.chat.completions.create(**ASKED, stream=True)
        pieces = [c.choices[0].delta.content or "" async for c in stream if c.choices]
        same("".join(pieces), ANSWER)


def parsed() -> None:
    answer = client.chat.completions.parse(**SEEN, response_format=Seen)
    found = answer.choices[0].message
    holds(isinstance(found.parsed, Seen))
    same(Seen.model_validate_json(found.content or ""), found.parsed)


def stream_helper() -> None:
    with client.chat.completions.stream(**SEEN, response_format=Seen) as stream:
        kinds = {event.type for event in stream}
        found = stream.get_final_completion().choices[0].message
    holds({"chunk", "content.delta", "content.done"} <= kinds, str(kinds))
    holds(isinstance(found.parsed, Seen))


def tools() -> None:
    answer = client.chat.completions.parse(**SEEN, tools=[TOOL], tool_choice="required")
    (call, *_) = answer.choices[0].message.tool_calls or []
    same(call.function.name, "seen")
    holds(isinstance(call.function.parsed_arguments, Seen))
    same(answer.choices[0].finish_reason, "tool_calls")


def streamed_tools() -> None:
    stream = client.chat.completions.create(
        **SEEN, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, stream=True
    )
    pieces = [c.choices[0].delta.tool_calls or [] for c in stream if c.choices]
    flat = [piece for some in pieces for piece in some]
    same(flat[0].function.name if flat[0].function else "", "seen")
    text = "".join((piece.function and piece.function.arguments) or "" for piece in flat)
    holds(Seen.model_validate_json(text))
    holds(len(flat) > 2, "arguments came in one piece")


def tool_result() -> None:
    call = client.chat.completions.create(**ASKED, tools=[TOOL], tool_choice="required")
    said = call.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": one.id, "content": "done"} for one in said.tool_calls or []
    ]
    again = {**ASKED, "messages": [*ASKED["messages"], said, *results], "max_tokens": 8}
    holds(client.chat.completions.create(**again, tools=[TOOL]).choices[0].finish_reason)


def several_choices() -> None:
    answer = client.chat.completions.create(**{**ASKED, "temperature": 0.9}, n=3, seed=5)
    same([choice.index for choice in answer.choices], [0, 1, 2])


def logprobs() -> None:
    answer = client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=3)
    found = answer.choices[0].logprobs
    content = (found and found.content) or []
    same("".join(token.token for token in content if "<|" not in token.token), ANSWER)
    holds(all(len(token.top_logprobs) == 3 for token in content))
    holds(all(token.logprob == max(t.logprob for t in token.top_logprobs) for token in content))


def completions() -> None:
    how: Any = {"model": MODEL, "prompt": TEXT, "temperature": 0, "max_tokens": 5}
    whole = client.completions.create(**how, echo=True).choices[0].text
    holds(whole.startswith(TEXT))
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**how, stream=True)]
    same(TEXT + "".join(pieces), whole)


def errors() -> None:
    try:
        client.chat.completions.create(**{**ASKED, "top_p": 7})
    except BadRequestError as error:
        same(error.param, "top_p")
    else:
        raise AssertionError("top_p 7 was taken")
    try:
        client.chat.completions.create(**{**ASKED, "model": "no-such"})
    except openai.NotFoundError as error:
        same(error.code, "model_not_found")
    else:
        raise AssertionError("an unknown model was taken")


def response() -> None:
    found = client.responses.create(model=MODEL, input=TEXT, temperature=0)
    same(found.output_text, ANSWER)
    same(found.status, "completed")


def response_of_a_picture() -> None:
    (message,) = SITE["messages"]
    parts: Any = [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": fresh(part["image_url"]["url"]), "detail": "auto"}
        for part in message["content"]
    ]
    items: Any = [{"role": "user", "content": parts}]
    found = client.responses.create(model=MODEL, input=items, temperature=0)
    same(found.output_text, SITE["seen"])


def streamed_response() -> None:
    with client.responses.stream(model=MODEL, input=TEXT, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    same("".join(e.delta for e in events if e.type == "response.output_text.delta"), ANSWER)
    same(final.output_text, ANSWER)
    same((events[0].type, events[-1].type), ("response.created", "response.completed"))


def parsed_response() -> None:
    found = client.responses.parse(model=MODEL, input=TEXT, text_format=Seen, temperature=0)
    holds(isinstance(found.output_parsed, Seen))


def stored_response() -> None:
    first = client.responses.create(model=MODEL, input=TEXT, temperature=0)
    same(client.responses.retrieve(first.id).output_text, ANSWER)
    items = client.responses.input_items.list(first.id).data
    same(len(items), 1)
    more = client.responses.create(
        model=MODEL, input=TEXT, previous_response_id=first.id, max_output_tokens=8
    )
    same(more.previous_response_id, first.id)
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
    except openai.NotFoundError:
        return
    raise AssertionError("a response that was deleted is still there")


def response_tools() -> None:
    tool: Any = {
        "type": "function",
        "name": "seen",
        "parameters": TOOL["function"]["parameters"],
        "strict": True,
    }
    found = client.responses.create(
        model=MODEL, input=TEXT, tools=[tool], tool_choice="required", temperature=0
    )
    call = found.output[0]
    same(call.type, "function_call")
    holds(Seen.model_validate(json.loads(getattr(call, "arguments", ""))))


if __name__ == "__main__":
    run(
        models, chat, picture, streamed_chat, asynchronous, parsed, stream_helper, tools,
        streamed_tools, tool_result, several_choices, logprobs, completions, errors, response,
        response_of_a_picture, streamed_response, parsed_response, stored_response, response_tools,
    )  # fmt: skip
