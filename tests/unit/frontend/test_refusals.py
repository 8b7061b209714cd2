"""Requests that the frontend refuses: the field is named, and nothing comes of them."""

import asyncio
import math
from typing import Any

import pytest

from protocol.errors import InvalidRequest, RequestError
from protocol.openai import decode_chat
from tests.support.frontend_helpers import (
    Fronts,
    chat,
    frontends,
    image_part,
    picture,
    render,
    render_prompts,
    user,
)
from tests.support.tiny_configs import MAX_POSITIONS

RED = picture(60, 40)


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Fronts:
    return frontends(tmp_path_factory.mktemp("models"))


BROKEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
EMBEDS = {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 4, 4]}, "uuid": "ab"}
SOUND = {"data": "AAAA", "format": "wav"}
PART = "messages[0].content[0]"
CLIP = f"{PART}.video_url.url"
REFUSED: list[tuple[dict[str, Any], int, str | None]] = [
    ({"model": "another"}, 404, "model"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user", "content": ""}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, 400, "messages[0].content"),
    ({"messages": user("")}, 400, "messages[0].content"),
    ({"messages": user({"type": "smell"})}, 400, f"{PART}.type"),
    ({"messages": user({"type": "text"})}, 400, f"{PART}.text"),
    ({"messages": user({"type": "video_url", "video_url": {"url": "x"}})}, 400, CLIP),
    ({"messages": user({"type": "video_url"})}, 400, f"{PART}.video_url"),
    ({"messages": user({"type": "video_embeds", "video_embeds": {}})}, 400, f"{PART}.uuid"),
    (
        {"messages": user({"type": "input_audio", "input_audio": {}})},
        400,
        f"{PART}.input_audio.data",
    ),
    ({"messages": user({"type": "input_audio", "input_audio": SOUND})}, 400, PART),
    ({"messages": user({"type": "image_url"})}, 400, f"{PART}.image_url"),
    ({"messages": user({"type": "image_url", "image_url": None})}, 400, f"{PART}.image_url"),
    (
        {"messages": user({"type": "image_url", "image_url": None, "uuid": "new"})},
        400,
        f"{PART}.image_url",
    ),
    ({"messages": user("x", BROKEN)}, 400, "messages[0].content[1].image_url.url"),
    ({"messages": user("x", image_part(b""))}, 400, "messages[0].content[1].image_url.url"),
    ({"messages": user(image_part(picture(2000, 3)))}, 400, f"{PART}.image_url.url"),
    ({"messages": user({"type": "image_url", "image_url": "ftp://x"})}, 400, f"{PART}.image_url"),
    ({"messages": user({**EMBEDS, "uuid": None})}, 400, f"{PART}.uuid"),
    ({"messages": user({**EMBEDS, "uuid": "../../x"})}, 400, f"{PART}.uuid"),
    ({"messages": user({**EMBEDS, "uuid": ".."})}, 400, f"{PART}.uuid"),
    ({"messages": user({**EMBEDS, "image_embeds": "AAAA"})}, 400, f"{PART}.image_embeds"),
    ({"messages": user({**EMBEDS, "image_embeds": {}})}, 400, f"{PART}.image_embeds"),
    (
        {"messages": user({**EMBEDS, "image_embeds": {"image_grid_thw": [1, 2**30, 2**30]}})},
        400,
        "messages",
    ),
    ({"messages": user(*[image_part(RED)] * 33)}, 400, "messages"),
    ({"messages": user("word " * 5000)}, 400, "messages"),
    ({"messages": user("word " * 500_000)}, 400, "messages"),
    ({"messages": user(image_part(RED, uuid="x" * 257))}, 400, f"{PART}.uuid"),
    ({"cache_salt": "x" * 257}, 400, "cache_salt"),
    (
        {
            "messages": [
                *user("x"),
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{"}}],
                },
            ]
        },
        400,
        "messages[1].tool_calls[0].function.arguments",
    ),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"max_tokens": 0, "prompt_logprobs": 1}, 400, "max_tokens"),
    ({"max_tokens": -1}, 400, "max_tokens"),
    ({"max_completion_tokens": 0}, 400, "max_completion_tokens"),
    ({"max_tokens": 5000}, 400, "max_tokens"),
    ({"max_tokens": MAX_POSITIONS}, 400, "max_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, 400, "min_tokens"),
    ({"min_tokens": -1}, 400, "min_tokens"),
    ({"n": 0}, 400, "n"),
    ({"n": 129}, 400, "n"),
    ({"temperature": -0.1}, 400, "temperature"),
    ({"top_p": 0}, 400, "top_p"),
    ({"top_p": 1.1}, 400, "top_p"),
    ({"top_k": -2}, 400, "top_k"),
    ({"min_p": 1.5}, 400, "min_p"),
    ({"presence_penalty": 2.1}, 400, "presence_penalty"),
    ({"frequency_penalty": -2.1}, 400, "frequency_penalty"),
    ({"repetition_penalty": 0}, 400, "repetition_penalty"),
    ({"seed": 1 << 63}, 400, "seed"),
    ({"stop": ["x"] * 17}, 400, "stop"),
    ({"stop": [""]}, 400, "stop"),
    ({"stop": "x" * 2000}, 400, "stop"),
    ({"stop_token_ids": [100_000]}, 400, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, 400, "stop_token_ids"),
    ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
    ({"logit_bias": {"100000": 1}}, 400, "logit_bias"),
    ({"logit_bias": {"1": 101}}, 400, "logit_bias"),
    ({"messages": user({"type": "text", "text": "x", "video": 1})}, 400, f"{PART}.video"),
    (
        {"messages": user(image_part(RED)), "truncate_prompt_tokens": 5},
        400,
        "truncate_prompt_tokens",
    ),
    ({"chat_template": "x"}, 400, "chat_template"),
    (
        {"continue_final_message": None, "add_generation_prompt": None, "model": "another"},
        404,
        "model",
    ),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs"),
    ({"top_logprobs": 2}, 400, "top_logprobs"),
    ({"continue_final_message": True}, 400, "continue_final_message"),
    ({"response_format": {"type": "json"}}, 400, "response_format"),
    ({"response_format": "json_object"}, 400, "response_format"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        400,
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_object", "schema": {"type": "cow"}}},
        400,
        "response_format",
    ),
    ({"structured_outputs": {"jsn": {}}}, 400, "structured_outputs.jsn"),
    ({"structured_outputs": {"choice": "a"}}, 400, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": []}}, 400, "structured_outputs"),
    ({"structured_outputs": {"json": "{"}}, 400, "structured_outputs"),
    ({"structured_outputs": {"grammar": "start: nobody"}}, 400, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, 400, "structured_outputs"),
    ({"guided_regex": "(a"}, 400, "guided_regex"),
    ({"guided_regex": "a" * 70_000}, 400, "guided_regex"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, 400, "guided_choice"),
    ({"guided_json": {"uniqueItems": True, "type": "array"}}, 400, "guided_json"),
    ({"guided_json": 5}, 400, "guided_json"),
    ({"tools": [{}], "tool_choice": "required"}, 400, "tools[0].function"),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"tool_choice": "always"}, 400, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, 400, "tool_choice.function"),
    ({"tool_choice": {"function": {"name": "f"}}}, 400, "tool_choice"),
    (
        {"tools": [{"function": {"name": "f"}}], "tool_choice": {"function": {"name": ""}}},
        400,
        "tool_choice",
    ),
]


@pytest.mark.parametrize(("fields", "status", "param"), REFUSED)
def test_a_wrong_chat_is_refused_by_field(
    fields: dict[str, Any], status: int, param: str | None, fronts: Fronts
) -> None:
    with pytest.raises(RequestError) as caught:
        render(fronts(), **fields)
    error = caught.value
    assert (error.status, error.param) == (status, param)
    assert error.to_openai()["error"]["message"]


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ([[]], {}, "prompt"),
        (["a", ""], {}, "prompt[1]"),
        ([-1], {}, "prompt"),
        ([100_000], {}, "prompt"),
        ([[1], [100_000]], {}, "prompt[1]"),
        (["a", 1], {}, "prompt"),
        ([1, [2]], {}, "prompt"),
        (["a", [1]], {}, "prompt"),
        (["a"] * 129, {}, "prompt"),
        ("a<|image_pad|>b", {}, "prompt"),
        ([1] * MAX_POSITIONS, {}, "prompt"),
        ("a", {"max_tokens": 0}, "max_tokens"),
        ("a", {"logprobs": 21}, "logprobs"),
        ("a", {"suffix": "x"}, "suffix"),
        ("a", {"best_of": 1, "n": 2}, "best_of"),
        ("a", {"best_of": 3, "stream": True}, "best_of"),
        ("a", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("a", {"prompt_logprobs": 21}, "prompt_logprobs"),
        ("a", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("a", {"truncate_prompt_tokens": MAX_POSITIONS + 1}, "truncate_prompt_tokens"),
        ("a", {"truncation_side": "left"}, "truncation_side"),
        ("a", {"allowed_token_ids": []}, "allowed_token_ids"),
        ("a", {"allowed_token_ids": [100_000]}, "allowed_token_ids"),
        ("a", {"logprob_token_ids": [5]}, "logprob_token_ids"),
        ("a", {"logprob_token_ids": [100_000], "logprobs": 0}, "logprob_token_ids"),
        ("a", {"logprob_token_ids": [5], "logprobs": 0, "echo": True}, "logprob_token_ids"),
        ("a", {"logprob_token_ids": [5] * 129, "logprobs": 0}, "logprob_token_ids"),
        ("a", {"bad_words": [" "]}, "bad_words"),
        ("a", {"bad_words": ["x"] * 129}, "bad_words"),
    ],
)
def test_a_wrong_completion_is_refused_by_field(
    prompt: Any, fields: dict[str, Any], param: str, fronts: Fronts
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render_prompts(fronts(), prompt, **fields)
    assert caught.value.param == param


def test_media_tokens_as_ids_are_refused(fronts: Fronts) -> None:
    pad = fronts().family.placeholders["image"].pad_id
    with pytest.raises(InvalidRequest, match="media"):
        render_prompts(fronts(), [1, pad])


def test_numbers_that_json_cannot_carry_are_refused(fronts: Fronts) -> None:
    for value in (math.nan, math.inf):
        request = chat()
        request.temperature = value
        with pytest.raises(InvalidRequest, match="temperature"):
            asyncio.run(fronts().render_chat(request, request_id="r"))


def test_a_long_prompt_has_openais_code(fronts: Fronts) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(fronts(), user("word " * 5000))
    assert caught.value.code == "context_length_exceeded"
    room = MAX_POSITIONS - len(render(fronts()).generate.token_ids)
    assert render(fronts(), max_tokens=room).generate.sampling.max_tokens == room
    with pytest.raises(InvalidRequest) as caught:
        render(fronts(), max_tokens=room + 1)
    assert caught.value.code == "context_length_exceeded"
    assert f"leaves room for {room} after a prompt of {MAX_POSITIONS - room}" in str(caught.value)
    with pytest.raises(InvalidRequest, match="tokens counts those of prompt and answer together"):
        render(fronts(), max_tokens=MAX_POSITIONS + 1)


def test_deep_nesting_is_rendered_or_refused(fronts: Fronts) -> None:
    refused = 0
    for depth in range(100, 1200, 50):
        nested = b"[" * depth + b"]" * depth
        body = (
            b'{"messages": [{"role": "user", "content": "x"}], "documents": [{"a": %b}]}' % nested
        )
        try:
            asyncio.run(fronts().render_chat(decode_chat(body), request_id="r"))
        except InvalidRequest:
            refused += 1
    assert 0 < refused < 22
