"""Media of requests that are passed on, as parts of chats; what is malformed is passed over."""

from types import SimpleNamespace
from typing import Any

import pytest

from protocol.bounds import MAX_CHOICES
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.relay.media import MediaItem
from proxy.relay.passed_media import media_passed
from proxy.relay.passed_request import PassedRequests

URL = "data:image/png;base64,iVBO"
PART = {"type": "image_url", "image_url": {"url": URL}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
LINKED = {"type": "image", "source": {"type": "url", "url": URL}}
TEXT = {"type": "text", "text": "Hi"}
INPUT = {"type": "input_image", "image_url": URL}


def turn(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def contents(chats: list[list[MediaItem]]) -> list[list[Any]]:
    return [[item.content for item in items] for items in chats]


@pytest.mark.parametrize(
    ("path", "fields", "found"),
    [
        ("/v1/embeddings", {"messages": [turn(TEXT, PART), turn(PART)]}, [[PART, PART]]),
        ("/pooling", {"input": "Hi"}, [[]]),
        (
            "/v1/chat/completions/batch",
            {"messages": [[turn(PART)], [turn(TEXT)], [turn(PART, PART)]]},
            [[PART], [], [PART, PART]],
        ),
        ("/v1/responses", {"input": "Hi"}, [[]]),
        (
            "/v1/responses",
            {"input": [turn(INPUT), {"type": "function_call_output", "output": [INPUT]}]},
            [[PART, PART]],
        ),
        ("/v1/messages", {"messages": [turn(BLOCK, TEXT, LINKED)]}, [[PART, PART]]),
        (
            "/v1/messages",
            {"messages": [turn({"type": "tool_result", "content": [TEXT, BLOCK]})]},
            [[PART]],
        ),
        ("/v1/rerank", {"messages": [turn(PART)]}, []),
    ],
)
def test_what_is_found(path: str, fields: dict[str, Any], found: list[list[Any]]) -> None:
    chats = media_passed(path, fields)
    assert contents(chats) == found
    for items in chats:
        assert [item.index for item in items] == list(range(len(items)))


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/embeddings"])
@pytest.mark.parametrize(
    "wrong",
    [
        None,
        5,
        "text",
        {},
        [5],
        [None, "text"],
        [{"role": "user", "content": 5}],
        [turn(None, 5, "text", [])],
        [turn({"type": "image"}, {"type": "image", "source": 5}, {"type": ["image"]})],
        [turn({"type": "image", "source": {"type": "url", "url": 5}})],
        [turn({"type": "tool_result", "content": 5}, {"type": "input_image", "image_url": {}})],
        [turn({"type": "tool_result", "content": [{"type": "tool_result", "content": [BLOCK]}]})],
    ],
)
def test_what_is_malformed_is_passed_over(path: str, wrong: Any) -> None:
    name = "input" if path == "/v1/responses" else "messages"
    assert contents(media_passed(path, {name: wrong})) == [[]]
    assert contents(media_passed("/v1/chat/completions/batch", {"messages": [wrong]})) == [[]]


BATCH = "/v1/chat/completions/batch"


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([[turn(PART, PART)], [turn(PART)]], 3),
        ([[turn(PART, PART, PART)], [turn(PART)]], 0),
        ([[turn(PART)]] * MAX_CHOICES, MAX_CHOICES),
        ([[turn(PART)]] * (MAX_CHOICES + 1), 0),
    ],
)
def test_nothing_is_encoded_of_a_request_that_its_worker_refuses(
    messages: list[Any], found: int
) -> None:
    """At most two media in a chat, and so many chats."""
    config = ProxyConfig(limit_mm_per_prompt=2)
    gateway: Any = SimpleNamespace(fleet=Fleet(), config=config, bodies=None)
    read: Any = SimpleNamespace(fields={"messages": messages})
    assert len(PassedRequests(gateway)._encodable(BATCH, read)) == found
