"""Outputs of a form that the client asks for, through the running stack."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from benchmarks.common.pictures import questions
from tests.support.chat_templates import TEMPLATES
from tests.support.clients import all_up
from tests.support.stack import Process, idle, metric, proxy, running
from tests.support.waiting import until

MODEL = Path(__file__).parents[2] / "models" / "demo"
SCHEMA = {
    "type": "object",
    "properties": {
        "shape": {"enum": ["circle", "square", "triangle", "star", "cross"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["shape", "count"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "seen", "schema": SCHEMA}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "draw", "parameters": SCHEMA}}
WORDS = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
# Else there are hundreds of blanks between the values of an object.
BLANKLESS = {"logit_bias": {str(WORDS[blank]): -100 for blank in "ĉĊčĠ"}}
LONG = "([a-z]{5} ){20}"


@dataclass
class Fleet:
    decode: list[Process]
    proxy: Process
    toolbox: Process  # a proxy whose template knows tools

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.proxy.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATES["qwen3_tools"])
    with running(MODEL) as stack:
        names = ("encoder", "prefill", "decode", "decode")
        workers = [stack.start(f"services.{name}") for name in names]
        for worker in workers:
            worker.wait_ready()
        encode, prefill, *decode = workers
        shape = ([encode], [prefill], decode)
        yield Fleet(
            decode,
            proxy(stack, *shape),
            proxy(stack, *shape, "--chat-template", str(template)),
        )
        for worker in workers:
            idle(worker)


def text_of(fleet: Fleet, messages: Any, **fields: Any) -> list[str | None]:
    answer = fleet.client.chat.completions.create(
        model="tiny", messages=messages, **{"temperature": 0, "max_tokens": 200, **fields}
    )
    return [choice.message.content for choice in answer.choices]


def streamed(fleet: Fleet, messages: Any, **fields: Any) -> Iterator[str]:
    stream = fleet.client.chat.completions.create(
        model="tiny",
        messages=messages,
        stream=True,
        **{"temperature": 0, "max_tokens": 200, **fields},
    )
    for event in stream:
        if event.choices and event.choices[0].delta.content:
            yield event.choices[0].delta.content


def test_a_picture_becomes_an_object_of_the_schema(fleet: Fleet) -> None:
    for question in questions("count", 2):
        messages = question.openai_messages()
        (text,) = text_of(fleet, messages, response_format=FORMAT, **BLANKLESS)
        seen = json.loads(text or "")
        assert set(seen) == {"shape", "count"} and 0 <= seen["count"] <= 9
        assert "".join(streamed(fleet, messages, response_format=FORMAT, **BLANKLESS)) == text


def test_every_choice_is_one_and_every_seed_the_same_again(fleet: Fleet) -> None:
    messages = next(iter(questions("shape", 1))).openai_messages()
    how = {"n": 4, "seed": 3, "temperature": 1.5, "extra_body": {"guided_regex": "(ab|cd){3}"}}
    found = text_of(fleet, messages, **how)
    assert all(re.fullmatch("(ab|cd){3}", text or "") for text in found)
    assert text_of(fleet, messages, **how) == found


def test_a_stream_goes_on_in_its_form_when_its_worker_dies(fleet: Fleet) -> None:
    """Again, if all streams have ended before it did."""
    messages = [{"role": "user", "content": "Tell me a story."}]
    how = {"max_tokens": 140, "extra_body": {"guided_regex": LONG}, "temperature": 0.7, "seed": 9}
    (undisturbed,) = text_of(fleet, messages, **how)
    assert re.fullmatch(LONG, undisturbed or "")

    def resumed() -> bool:
        with ThreadPoolExecutor(4) as pool:
            streams = [streamed(fleet, messages, **how) for _ in range(4)]
            begun = list(pool.map(next, streams))
            rest = [pool.submit("".join, stream) for stream in streams]
            fleet.decode[0].kill()
            texts = [first + one.result(60) for first, one in zip(begun, rest, strict=True)]
        assert texts == [undisturbed] * len(streams)
        fleet.decode[0].restart()
        until(lambda: all_up(fleet.proxy, 4))
        return metric(fleet.proxy, 'proxy:retries_total{stage="resumed"') > 0

    assert any(resumed() for _ in range(5))


def test_a_tool_call_can_be_asked_for(fleet: Fleet) -> None:
    client = OpenAI(base_url=f"{fleet.toolbox.url}/v1", api_key="none", max_retries=0)
    for tool_choice in ("required", {"type": "function", "function": {"name": "draw"}}):
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Draw something."}],
            tools=[TOOL],
            tool_choice=tool_choice,
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=400,
            **BLANKLESS,
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls" and not choice.message.content
        (call,) = choice.message.tool_calls or ()
        assert call.type == "function" and call.function.name == "draw"
        assert set(json.loads(call.function.arguments)) == {"shape", "count"}


def test_arguments_are_streamed_as_they_come(fleet: Fleet) -> None:
    client: Any = OpenAI(base_url=f"{fleet.toolbox.url}/v1", api_key="none", max_retries=0)
    with client.chat.completions.stream(
        model="tiny",
        messages=[{"role": "user", "content": "Draw something."}],
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=400,
        **BLANKLESS,
    ) as stream:
        deltas = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
        (choice,) = stream.get_final_completion().choices
    assert len(deltas) > 2
    (call,) = choice.message.tool_calls or ()
    assert "".join(e.arguments_delta for e in deltas) == call.function.arguments
    assert set(json.loads(call.function.arguments)) == {"shape", "count"}


def test_responses_with_a_picture_a_tool_and_a_history(fleet: Fleet) -> None:
    """By OpenAI's own client: whole, streamed, and after one that is stored."""
    client: Any = OpenAI(base_url=f"{fleet.toolbox.url}/v1", api_key="none", max_retries=0)
    question: Any = next(iter(questions("count", 1))).openai_messages()[0]["content"]
    (url,) = (part["image_url"]["url"] for part in question if part["type"] == "image_url")
    form = {"type": "json_schema", "name": "seen", "schema": SCHEMA}
    picture = {"type": "input_image", "image_url": url, "detail": "auto"}
    seeing: Any = fleet.client
    seen = seeing.responses.create(
        model="tiny",
        input=[{"role": "user", "content": [picture]}],
        text={"format": form},
        temperature=0,
        max_output_tokens=200,
        extra_body=BLANKLESS,
    )
    assert set(json.loads(seen.output_text)) == {"shape", "count"} and seen.usage is not None
    how: dict[str, Any] = {
        "model": "tiny",
        "tools": [{"type": "function", "strict": True, **TOOL["function"]}],
        "tool_choice": {"type": "function", "name": "draw"},
        "temperature": 0,
        "max_output_tokens": 400,
        "extra_body": BLANKLESS,
    }
    whole = client.responses.create(input="Draw something.", **how)
    with client.responses.stream(input="Draw something.", **how) as stream:
        told = [event.type for event in stream]
        last = stream.get_final_response()
    assert told.count("response.function_call_arguments.delta") > 2
    (call,), (streamed,) = whole.output, last.output
    assert call.type == streamed.type == "function_call" and call.arguments == streamed.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    goes_on = {**how, "tool_choice": "auto", "max_output_tokens": 4}
    after = client.responses.create(
        input=[result],
        previous_response_id=whole.id,
        **goes_on,
    )
    assert after.usage and whole.usage
    assert after.usage.input_tokens > whole.usage.input_tokens
    assert client.responses.retrieve(after.id).output == after.output


def test_what_cannot_be_followed_is_refused(fleet: Fleet) -> None:
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "cow"}}}
    with pytest.raises(BadRequestError, match="cow") as caught:
        text_of(fleet, [{"role": "user", "content": "x"}], response_format=wrong)
    assert caught.value.param == "response_format"
