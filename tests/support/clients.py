"""Conversations of `tests.support.conversations` as OpenAI requests, and their token ids back."""

import base64
import json
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.support.engines import png
from tests.support.reference import Messages
from tests.support.stack import Process, call
from tests.support.waiting import until


def openai_messages(messages: Messages) -> Messages:
    return [{**m, "content": [_part(part) for part in m["content"]]} for m in messages]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "image":
        data = base64.b64encode(png(part["image"])).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    if part["type"] == "video":
        data = base64.b64encode(part["video"].data).decode()
        return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}}
    if part["type"] == "audio":
        data = base64.b64encode(part["audio"].data).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return part


def body_of(messages: Messages, **params: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": openai_messages(messages),
        "temperature": 0,
        "return_token_ids": True,
        **params,
    }


def all_up(server: Process, count: int = 1) -> bool:
    """Whether a proxy takes every worker it knows, at least so many, to be up."""
    body = call(f"{server.url}/health")[1]
    states = [state for role in ("encode", "prefill", "decode") for state in body[role].values()]
    return len(states) >= count and set(states) == {"up"}


def complete(server: Process, messages: Messages, **params: Any) -> Any:
    """The whole answer; anything but a 200 fails."""
    status, answer = call(f"{server.url}/v1/chat/completions", body_of(messages, **params))
    assert status == 200, answer
    return answer


def tokens(server: Process, messages: Messages, **params: Any) -> list[int]:
    """Token ids of the first choice."""
    ids: list[int] = complete(server, messages, **params)["choices"][0]["token_ids"]
    return ids


def all_tokens(server: Process, cases: list[Messages], **params: Any) -> list[list[int]]:
    """Every case at once."""
    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(lambda case: tokens(server, case, **params), cases))


def caught(
    pool: ThreadPoolExecutor,
    server: Process,
    cases: list[Messages],
    seen: Callable[[], bool],
    **params: Any,
) -> list[Future[list[int]]]:
    """Every case at once, under way when it is `seen`; anew if all were over by then."""
    streams: list[Future[list[int]]] = []

    def under_way() -> bool:
        if all(one.done() for one in streams):
            streams[:] = [pool.submit(tokens, server, case, **params) for case in cases]
        return seen()

    until(under_way)
    return streams


Asked = list[tuple[Messages, str]]
"""Conversations, and the model that each is for."""


def tokens_of_models(server: Process, asked: Asked, count: int) -> list[list[int]]:
    """The first `count` of each answer, all asked for at once."""

    def one(messages: Messages, name: str) -> list[int]:
        return tokens(server, messages, model=name, max_tokens=count, ignore_eos=True)

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(one, *zip(*asked, strict=True)))


def streamed(server: Process, path: str, body: dict[str, Any]) -> list[str]:
    """The events of an answer, `data: ` included."""
    request = urllib.request.Request(
        server.url + path,
        json.dumps({**body, "stream": True}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        return [event for event in response.read().decode().split("\n\n") if event]
