"""Dynamo's `nvext`: what it asks for beside a request's own fields, which go before it."""

import json
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.openai import CompletionRequest, decode_chat, decode_completion

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def completion(nvext: Any, **own: Any) -> CompletionRequest:
    return decode_completion(json.dumps({"prompt": "Hi", "nvext": nvext, **own}).encode())


def test_members_with_a_field_of_their_own_are_that_field() -> None:
    nvext = {"top_k": 5, "min_p": 0.25, "repetition_penalty": 1.5, "ignore_eos": True,
             "guided_regex": "a+", "cache_salt": "s"}  # fmt: skip
    found = completion(nvext)
    assert (found.top_k, found.min_p, found.repetition_penalty) == (5, 0.25, 1.5)
    assert (found.ignore_eos, found.guided_regex, found.cache_salt) == (True, "a+", "s")
    chat = decode_chat(json.dumps({**CHAT, "nvext": nvext}).encode())
    assert (chat.top_k, chat.ignore_eos, chat.messages[0].role) == (5, True, "user")


def test_the_requests_own_fields_go_before_it() -> None:
    found = completion({"top_k": 5, "min_p": 0.25, "greed_sampling": True}, top_k=7, temperature=1)
    assert (found.top_k, found.min_p, found.temperature) == (7, 0.25, 1)
    config = {"extra_configs": {"top_k": 3, "top_p": 0.5}, "nvext": {"top_k": 5, "min_p": 0.25}}
    chat = decode_chat(json.dumps({**CHAT, **config}).encode())
    assert (chat.top_k, chat.top_p, chat.min_p) == (3, 0.5, 0.25)


def test_greedy_sampling_and_sessions_have_other_names() -> None:
    session = {"session_id": "one", "action": "open", "timeout": 5}
    found = completion({"greed_sampling": True, "session_control": session})
    assert (found.temperature, found.session_id) == (0, "one")
    assert completion({"greed_sampling": False}).temperature is None


def test_a_chats_own_name_goes_before_its_session() -> None:
    """Both say which requests belong together, and a session id would win."""
    body = {**CHAT, "chat_id": "mine", "nvext": {"session_control": {"session_id": "one"}}}
    chat = decode_chat(json.dumps(body).encode())
    assert (chat.chat_id, chat.session_id) == ("mine", None)


def test_what_says_nothing_of_the_answer_is_taken() -> None:
    nvext = {"backend_instance_id": 4, "dp_rank": 1, "agent_hints": {"priority": 5, "osl": 9},
             "annotations": [], "use_raw_prompt": False, "extra_fields": None}  # fmt: skip
    assert completion(nvext).top_k is None
    assert completion({}).nvext == {}
    assert completion(None).nvext is None


@pytest.mark.parametrize(
    ("nvext", "param", "code"),
    [
        ({"token_data": [1]}, "nvext.token_data", "unsupported_parameter"),
        ({"annotations": ["formatted_prompt"]}, "nvext.annotations", "unsupported_parameter"),
        ({"extra_fields": ["timing"]}, "nvext.extra_fields", "unsupported_parameter"),
        ({"use_raw_prompt": True}, "nvext.use_raw_prompt", "unsupported_parameter"),
        ({"max_thinking_tokens": 5}, "nvext.max_thinking_tokens", "unsupported_parameter"),
        ({"top_q": 5}, "nvext.top_q", "unknown_parameter"),
        ({"top_q": 5, "token_data": [1], "top_r": 5}, "nvext.top_q", "unknown_parameter"),
        ({"x" * 5000: 5}, "nvext." + "x" * 58, "unknown_parameter"),
        ({"greed_sampling": "false"}, "nvext.greed_sampling", "invalid_type"),
        ({"greed_sampling": 0}, "nvext.greed_sampling", "invalid_type"),
        ({"top_k": "many"}, "nvext.top_k", None),
        ({"session_control": {"session_id": 5}}, "nvext.session_control.session_id", None),
        ({"session_control": 5}, "nvext.session_control.session_id", None),
        (5, "nvext", None),
    ],
)
def test_what_is_not_honoured_is_named(nvext: Any, param: str, code: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        completion(nvext)
    assert refused.value.param == param and len(refused.value.message) < 200
    assert code is None or refused.value.code == code
