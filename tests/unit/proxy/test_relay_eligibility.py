"""Which streams could be resumed on another worker."""

import json
from typing import Any

import pytest

from proxy.relay.bodies import RequestBody
from proxy.relay.resume.eligibility import can_be_resumed


def resumable(**more: Any) -> bool:
    body = {"messages": [{"role": "user", "content": "a"}], "stream": True, "temperature": 0}
    return can_be_resumed(RequestBody.parse(json.dumps({**body, **more}).encode(), references=True))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0.0, "max_tokens": 3, "model": "m", "seed": 1, "ignore_eos": True},
        {"tools": [], "tool_choice": "none", "stop": None, "n": 1, "logprobs": False},
        {"presence_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0},
        {"stream_options": {"include_usage": True}, "response_format": {"type": "text"}},
        {"stream_options": None, "return_token_ids": True, "tools": None},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
    ],
)
def test_streams_that_could_be_resumed(more: dict[str, Any]) -> None:
    assert resumable(**more)


@pytest.mark.parametrize(
    "more",
    [
        {"stream": False},
        {"temperature": 1e-9},
        {"temperature": None},
        {"n": 2},
        {"logprobs": True},
        {"top_logprobs": 2},
        {"stop": "x"},
        {"min_tokens": 1},
        {"logit_bias": {"1": 2}},
        {"frequency_penalty": -1},
        {"repetition_penalty": 1.1},
        {"tools": [{}]},
        {"tool_choice": "auto"},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a"}},
        {"echo": True},
        {"include_reasoning": False},
        {"reasoning_effort": "low"},
        {"return_token_ids": False},
        {"return_token_ids": None},
        {"stream_options": {"continuous_usage_stats": True}},
        {"stream_options": 3},
        {"ec_transfer_params": {"a": {}}},
        {"anything": 1},
        {"messages": "x"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_embeds"}]}]},
    ],
)
def test_streams_that_could_not(more: dict[str, Any]) -> None:
    assert not resumable(**more)
