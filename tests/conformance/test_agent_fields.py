"""docs/api.md for /v1/responses and /v1/messages, row by row, through a proxy of each dialect."""

import json
from typing import Any

import pytest

from protocol.agent_fields import AGENT_FIELDS
from protocol.request_fields import RequestField, State
from tests.conformance.asking import PROMPT, TOKENS, Door, Json
from tests.support.stack import call

PATHS = {"responses": "/v1/responses", "messages": "/v1/messages"}
BASES: dict[str, Json] = {
    "responses": {"input": PROMPT, "max_output_tokens": TOKENS, "temperature": 0},
    "messages": {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": TOKENS,
        "temperature": 0,
    },
}


def rows(state: State) -> list[Any]:
    found = [row for row in AGENT_FIELDS if row.state == state]
    return [pytest.param(row, id=f"{row.name}-{row.routes[0]}") for row in found]


def post(door: Door, row: RequestField, **fields: Any) -> tuple[int, Any]:
    (route,) = row.routes
    return call(door.url + PATHS[route], {**BASES[route], **fields})


def content_of(answer: Json) -> list[str]:
    items = answer.get("output") or [answer]
    return [part["text"] for item in items for part in item["content"]]


def served(door: Door) -> str:
    return str(call(f"{door.url}/v1/models")[1]["data"][0]["id"])


@pytest.mark.parametrize("row", rows("works"))
def test_what_works_is_taken(row: RequestField, door: Door) -> None:
    value = row.example
    if row.name == "model":
        value = served(door)
    if row.name == "previous_response_id":
        value = post(door, row)[1]["id"]
    if row.name == "stream":
        value = False
    if row.name == "mm_processor_kwargs":
        value = {}  # the model has no pictures
    status, answer = post(door, row, **{row.name: value})
    assert status == 200, answer
    assert answer["usage"]["output_tokens"] <= TOKENS


@pytest.mark.parametrize("row", rows("refused"))
def test_what_is_refused_is_named(row: RequestField, door: Door) -> None:
    status, answer = post(door, row, **{row.name: row.example})
    assert status == 400 and answer["error"]["type"] == "invalid_request_error"
    assert f"{row.name} is not supported" in answer["error"]["message"]


@pytest.mark.parametrize("row", rows("harmless"))
def test_what_is_harmless_changes_nothing(row: RequestField, door: Door) -> None:
    status, answer = post(door, row, **{row.name: row.example})
    assert status == 200, answer
    assert content_of(answer) == content_of(post(door, row)[1])


@pytest.mark.parametrize("route", PATHS)
def test_an_unknown_field_is_refused(route: str, door: Door) -> None:
    status, answer = call(door.url + PATHS[route], {**BASES[route], "temprature": 1})
    assert status == 400 and "temprature" in answer["error"]["message"]


def test_a_message_keeps_to_a_schema(door: Door) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "schema": schema}
    body = {**BASES["messages"], "max_tokens": 40}
    config = {"format": form, "task_budget": {"type": "tokens", "total": 9}}
    for fields in ({"output_format": form}, {"output_config": config}):
        status, answer = call(door.url + PATHS["messages"], {**body, **fields})
        assert status == 200, answer
        (text,) = content_of(answer)
        assert json.loads(text) in ({"a": 1}, {"a": 2})
