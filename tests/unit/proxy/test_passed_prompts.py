"""Keys of messages and responses: the same for what is one prompt, however a client writes it."""

import json
from typing import Any

import pytest

from proxy.placement.planner import Need
from proxy.relay.bodies import RequestBody
from proxy.relay.message_keys import passed_need, predicted_need
from proxy.relay.passed_media import media_passed
from proxy.relay.passed_prompts import FORMS

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
LONG = "Once upon a time there was a picture in three panels. " * 20
BLOCK = 16
MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
DATA = "iVBO" * 2000
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
URL = f"data:image/png;base64,{DATA}"


def need(path: str, fields: dict[str, Any]) -> Need:
    body = RequestBody.parse(json.dumps({"model": "m", **fields}).encode())
    (media,) = media_passed(path, body.fields)
    return passed_need(body, media, FORMS[path], "r")[0]


def shared(path: str, first: dict[str, Any], second: dict[str, Any]) -> float:
    """The share of the first one's blocks that the second one begins with."""
    one, two = (need(path, fields).keys(BLOCK) for fields in (first, second))
    alike = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    return alike / len(one)


def said(role: str, *content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content[0] if len(content) == 1 else list(content), **more}


def text(words: str, kind: str = "text", **more: Any) -> dict[str, Any]:
    return {"type": kind, "text": words, **more}


def test_a_mark_that_moves_on_to_the_next_turn_is_in_no_key() -> None:
    """Clients cache up to their last block, which may be a tool's result."""
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": LONG}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text(LONG)]}
    turns = [
        said("user", [text(LONG, **MARK)]),
        said("assistant", [text("Well."), {**call, **MARK}]),
        said("user", [{**result, **MARK}]),
    ]
    plain = [said("user", LONG), said("assistant", [text("Well."), call]), said("user", [result])]
    first = {"system": [text(LONG, **MARK)], "messages": turns}
    second = {"system": LONG, "messages": [*plain, said("assistant", "So."), said("user", "And?")]}
    assert shared(MESSAGES, first, second) == 1.0


def test_a_first_turn_may_be_a_text_and_come_back_in_a_list() -> None:
    answer = said("assistant", [text("Well.", "output_text", annotations=[])], id="msg_1")
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": LONG}
    for given in ([said("user", LONG)], [said("user", [text(LONG, "input_text")], type="message")]):
        turns = [*given, answer, call, {"type": "function_call_output", "output": LONG}]
        first, second = (
            {"instructions": LONG, "input": LONG},
            {"instructions": LONG, "input": turns},
        )
        assert shared(RESPONSES, first, second) == 1.0


@pytest.mark.parametrize("path", FORMS)
def test_another_text_or_picture_ends_what_is_shared(path: str) -> None:
    name, image = ("messages", IMAGE) if path == MESSAGES else ("input", input_image(URL))
    other = json.loads(json.dumps(image).replace("iVBO", "AAAA"))
    parts = [[text(LONG), image, text(LONG)], [text(LONG), other, text(LONG)]]
    first, second = ({name: [said("user", some)]} for some in parts)
    assert shared(path, first, first) == 1.0
    assert 0.1 < shared(path, first, second) < 0.5


def input_image(url: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url}


def test_a_picture_has_the_name_that_it_has_in_a_chat() -> None:
    part = {"type": "image_url", "image_url": {"url": URL}}
    chat = {"model": "m", "messages": [said("user", [part])]}
    body = RequestBody.parse(json.dumps(chat).encode())
    body.find_media(1)
    (wanted,) = predicted_need(body, "r")[1]
    forms = {
        MESSAGES: {"messages": [said("user", [{"type": "tool_result", "content": [IMAGE]}])]},
        RESPONSES: {"input": [said("user", [text(LONG, "input_text"), input_image(URL)])]},
    }
    for path, fields in forms.items():
        found = need(path, fields)
        (item,) = found.items
        assert item.mm_hash == wanted and item.offset + item.tokens <= found.prompt_tokens


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("wrong", [None, 5, "x", [5, None], [{}], [{"role": 5, "content": 5}],
                                   [said("user", [5, None, {"type": 7}, [[]]])]])  # fmt: skip
def test_what_workers_will_refuse_can_be_asked_for_all_the_same(path: str, wrong: Any) -> None:
    fields = {"messages": wrong, "input": wrong, "system": wrong, "instructions": wrong}
    found = need(path, {**fields, "max_tokens": "x", "max_output_tokens": 0})
    assert found.prompt_tokens >= 1 and found.max_tokens == 0
    assert found.alone and found.predicted


def test_pictures_that_are_too_many_are_no_part_of_the_keys() -> None:
    """Their worker refuses them: they are not even read."""
    body = RequestBody.parse(json.dumps({"messages": [said("user", [IMAGE] * 9)]}).encode())
    found, names = passed_need(body, [], FORMS[MESSAGES], "r")
    assert found.prompt_tokens < 9 and not names and not found.items
