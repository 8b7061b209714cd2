"""What a worker is asked so that it goes on with another's stream."""

import json
from typing import Any

import pytest

from proxy.relay.resume.progress import Progress
from proxy.relay.resume.resume import Inexact, _from_tokens

PARAMS = {"temperature": 0.0, "repetition_penalty": 1.05, "max_tokens": 9}
RENDERED = {
    "request_id": "r", "token_ids": [5, 6], "features": None, "sampling_params": PARAMS,
    "model": "m", "stream_options": {"include_usage": True}, "reasoning_parser_kwargs": None,
    "priority": 0, "output_mode": "tokens",
}  # fmt: skip


def progress(sure: int = 2) -> Progress:
    return Progress({"id": "i"}, [5, 6], [1, 2, 3], sure, "x")


def asked(rendered: dict[str, Any], sure: int = 2) -> dict[str, Any]:
    body = _from_tokens(rendered, progress(sure))
    assert body is not None
    return dict(json.loads(body))


def test_it_is_asked_for_what_follows_the_tokens_that_are_sure() -> None:
    assert asked(RENDERED) == {
        "token_ids": [5, 6, 1, 2], "features": None, "model": "m", "priority": 0,
        "sampling_params": {**PARAMS, "max_tokens": 7}, "reasoning_parser_kwargs": None,
        "output_mode": "text", "stream": True,
    }  # fmt: skip


def test_the_number_of_tokens_that_vllm_leaves_out() -> None:
    params = {"temperature": 0}
    body = asked({**RENDERED, "sampling_params": params})
    assert body["sampling_params"] == {"temperature": 0, "max_tokens": 14}


def test_nothing_is_asked_for_where_nothing_may_follow() -> None:
    params = {**PARAMS, "max_tokens": 2}
    assert _from_tokens({**RENDERED, "sampling_params": params}, progress()) is None


@pytest.mark.parametrize(
    "other",
    [
        {"token_ids": [5, 7]},
        {"token_ids": None},
        {"features": {"mm_hashes": {"image": ["h"]}}},
        {"reasoning_parser_kwargs": {"chat_template_kwargs": {}}},
        {"sampling_params": None},
        {"sampling_params": {**PARAMS, "temperature": 0.7}},
        {"sampling_params": {**PARAMS, "presence_penalty": 0.1}},
        {"sampling_params": {**PARAMS, "min_tokens": 3}},
        {"sampling_params": {**PARAMS, "structured_outputs": {"regex": "a"}}},
        {"sampling_params": {**PARAMS, "max_tokens": None}},
    ],
)
def test_nor_where_it_would_be_another_answer(other: dict[str, Any]) -> None:
    with pytest.raises(Inexact):
        _from_tokens({**RENDERED, **other}, progress())
