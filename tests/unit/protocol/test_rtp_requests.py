"""RTP-LLM's raw requests and generate_config as our own requests."""

import json
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest, decode_chat
from protocol.rtp_config import HARMLESS, config_fields
from protocol.rtp_requests import MAX_PROMPTS, RawRequest, decode_raw
from protocol.rtp_status import StatusQuery

# As RTP-LLM's clients write out their defaults.
DEFAULTS: dict[str, Any] = {
    "max_new_tokens": 32000, "num_beams": 1, "do_sample": True, "num_return_sequences": 0,
    "top_k": 0, "top_p": 1.0, "temperature": 1.0, "random_seed": None, "stop_words_str": [],
    "stop_words_list": [], "timeout_ms": -1, "adapter_name": None, "calculate_loss": 0,
    "return_logits": False, "role_addrs": [], "trace_id": "", "max_thinking_tokens": 32000,
    "in_think_mode": False, "variable_num_beams": [], "aux_info": True,
}  # fmt: skip


def raw(**body: Any) -> RawRequest:
    return decode_raw(json.dumps(body).encode())


def test_defaults_ask_for_nothing_but_what_is_the_same() -> None:
    found = config_fields(DEFAULTS, "generate_config")
    assert found == {"top_k": 0, "top_p": 1.0, "temperature": 1.0}


def test_a_raw_request_is_a_completion() -> None:
    config = {"max_new_tokens": 5, "stop_words_list": [[7], [9]], "random_seed": 3, "regex": "a+"}
    found = raw(prompt="Hi", generate_config={**DEFAULTS, **config}, top_k=4)
    (request,) = found.requests
    assert isinstance(request, CompletionRequest)
    assert (request.prompt, request.max_tokens, request.top_k) == ("Hi", 5, 4)
    assert (request.stop_token_ids, request.seed, request.guided_regex) == ([7, 9], 3, "a+")
    assert not found.stream and not found.batch and found.aux_info


def test_the_body_may_be_a_text_that_holds_json() -> None:
    found = decode_raw(json.dumps(json.dumps({"prompt": "Hi"})).encode())
    assert [request.prompt for request in found.requests] == ["Hi"]  # type: ignore[union-attr]


def test_a_list_of_messages_is_a_chat() -> None:
    (request,) = raw(prompt=[{"role": "user", "content": "Hi"}], temperature=0).requests
    assert isinstance(request, ChatCompletionRequest)
    assert request.messages[0].content == "Hi" and request.temperature == 0


def test_a_batch_has_pictures_by_prompt() -> None:
    found = raw(prompt_batch=["a", "b"], images=[["u"], []], generate_config={"timeout_ms": 1500})
    assert (found.batch, found.images, found.timeout_s) == (True, [["u"], []], 1.5)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "x", "prompt_batch": ["y"]}, "prompt"),
        ({"prompt_batch": []}, "prompt_batch"),
        ({"prompt_batch": ["x"], "yield_generator": True}, "yield_generator"),
        ({"prompt": "x", "generate_config": {"return_incremental": True}}, "return_incremental"),
        ({"prompt": "x", "generate_config": 5}, "generate_config"),
        ({"prompt": "x", "generate_config": {"num_beams": 4}}, "generate_config.num_beams"),
        ({"prompt": "x", "generate_config": {"top_p": 7}}, "generate_config.top_p"),
        ({"prompt": "x", "generate_config": {"nonsense": 1}}, "generate_config.nonsense"),
        ({"prompt": "x", "generate_config": {"aux_info": 5}}, "generate_config.aux_info"),
        (
            {"prompt": "x", "generate_config": {"stop_words_list": [[1, 2]]}},
            "generate_config.stop_words_list",
        ),
        ({"prompt": "x", "functions": [{"name": "f"}]}, "functions"),
        ({"prompt": "x", "images": "u"}, "images"),
        ({"prompt_batch": ["x", "y"], "images": [["u"]]}, "images"),
    ],
)
def test_what_is_wrong_is_named(body: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        raw(**body)
    assert refused.value.param == param


def test_harmless_members_are_taken_with_any_value() -> None:
    assert config_fields(dict.fromkeys(HARMLESS, "x"), "c") == {}


def test_a_chats_own_fields_go_before_its_extra_configs() -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "temperature": 0.5}
    config = {"temperature": 0.9, "max_new_tokens": 7, "do_sample": True}
    request = decode_chat(json.dumps({**chat, "extra_configs": config}).encode())
    assert (request.temperature, request.max_tokens) == (0.5, 7)
    with pytest.raises(InvalidRequest) as refused:
        decode_chat(json.dumps({**chat, "extra_configs": {"min_new_tokens": -1}}).encode())
    assert refused.value.param == "extra_configs.min_new_tokens"


def test_a_batch_has_one_prompt_up_to_as_many_as_a_completion_may_have() -> None:
    for count in (1, MAX_PROMPTS):
        assert len(raw(prompt_batch=["x"] * count).requests) == count
    with pytest.raises(InvalidRequest, match=f"1 to {MAX_PROMPTS} prompts"):
        raw(prompt_batch=["x"] * (MAX_PROMPTS + 1))


@pytest.mark.parametrize(("given", "seconds"), [(1, 0.001), (0, None), (-1, None), (None, None)])
def test_only_a_timeout_above_0_is_one(given: int | None, seconds: float | None) -> None:
    assert raw(prompt="x", generate_config={"timeout_ms": given}).timeout_s == seconds


def test_flags_are_off_but_for_the_auxiliary_information() -> None:
    found = raw(prompt="x")
    shown = (found.several, found.incremental, found.aux_info, found.output_ids, found.input_ids)
    assert shown == (False, False, True, False, False)
    flags = {"num_return_sequences": 2, "return_output_ids": True, "return_input_ids": True}
    found = raw(prompt="x", generate_config={**flags, "aux_info": False})
    shown = (found.several, found.incremental, found.aux_info, found.output_ids, found.input_ids)
    assert shown == (True, False, False, True, True)
    found = raw(prompt="x", yield_generator=True, return_incremental=True)
    assert found.stream and found.incremental


def test_only_a_chat_has_words_for_its_template() -> None:
    config = {"chat_template_kwargs": {"a": 1}}
    (text,) = raw(prompt="x", generate_config=config).requests
    assert isinstance(text, CompletionRequest)
    (chat,) = raw(prompt=[{"role": "user", "content": "x"}], generate_config=config).requests
    assert isinstance(chat, ChatCompletionRequest) and chat.chat_template_kwargs == {"a": 1}


@pytest.mark.parametrize("prompt", [[], ["x"], [1], 5, None, {}])
def test_a_prompt_is_a_text_or_messages(prompt: Any) -> None:
    with pytest.raises(InvalidRequest):
        raw(prompt=prompt)


@pytest.mark.parametrize(("given", "known"), [(None, -1), (-1, -1), (0, 0), (7, 7)])
def test_a_question_without_a_version_knows_nothing(given: int | None, known: int) -> None:
    assert StatusQuery(latest_cache_version=given).keys_since == known
    assert StatusQuery(latest_finished_version=given).ended_since == known
    assert StatusQuery().keys_since == StatusQuery().ended_since == -1
