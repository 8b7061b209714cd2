"""`/v1/chat/completions/batch` through a proxy of each dialect."""

from typing import Any

import pytest

from tests.conformance.asking import PROMPT, TOKENS, Door, Json, text_of
from tests.support.stack import call

PATH = "/v1/chat/completions/batch"
CHATS = [
    [{"role": "user", "content": PROMPT}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    [{"role": "user", "content": PROMPT}],
]
FIELDS: Json = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


def test_a_batch_has_the_answers_of_its_chats(door: Door) -> None:
    status, answer = call(door.url + PATH, {**FIELDS, "messages": CHATS})
    assert status == 200, answer
    alone = [door.ask("chat", **FIELDS, messages=chat) for chat in CHATS]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [text_of(answer, i) for i in range(3)] == [text_of(one) for one in alone]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == sum(one["usage"][name] for one in alone)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [CHATS[0], [{"role": "user", "content": 5}]]}, "messages[1][0].content"),
        ({"temprature": 1}, "temprature"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_what_a_batch_does_not_take_is_named(fields: Any, param: str, door: Door) -> None:
    status, answer = call(door.url + PATH, {**FIELDS, "messages": CHATS, **fields})
    assert (status, answer["error"]["param"]) == (400, param)
