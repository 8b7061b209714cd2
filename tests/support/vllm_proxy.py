"""A client that drives workers as vLLM 0.33's example proxy does, with chat requests alone.

Each picture gets a uuid: the client's own, or a hash of its URL. The uuid goes to the encoder
beside the picture and to prefill and decode in place of it. Pictures are dealt out to the encoders
in turn, one request for each encoder. `rewrite=False` is that proxy's `--no-rewrite`.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from tests.support.reference import Messages
from tests.support.stack import Process, call

CHAT = "/v1/chat/completions"
REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def ask(process: Process, body: Any) -> Any:
    status, answer = call(process.url + CHAT, body)
    assert status == 200, answer
    return answer


def run(
    encoders: Sequence[Process],
    prefill: Process,
    decode: Process,
    body: dict[str, Any],
    *,
    rewrite: bool = True,
) -> Any:
    """The decode worker's answer to a chat request."""
    pictures = [part for message in body["messages"] for part in _pictures(message)]
    found, params = _encode(encoders, body["model"], pictures, rewrite)
    if rewrite:
        body = {**body, "messages": _referring(body["messages"], found)}
    if params:
        body = {**body, "ec_transfer_params": params}
    first = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": REMOTE_DECODE}
    handed = ask(prefill, first)["kv_transfer_params"]
    return ask(decode, {**body, "kv_transfer_params": handed})


def _encode(
    encoders: Sequence[Process], model: str, pictures: list[dict[str, Any]], rewrite: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """For each picture what stands for it, and what the encoders reported, by their own names."""
    found: list[dict[str, Any]] = [{} for _ in pictures]
    params: dict[str, Any] = {}
    for first, encoder in enumerate(encoders):
        places = range(first, len(pictures), len(encoders))
        content = [_with_uuid(pictures[place]) if rewrite else pictures[place] for place in places]
        if not content:
            continue
        messages = [{"role": "user", "content": content}]
        answer = ask(encoder, {"model": model, "messages": messages, "stream": False})
        for place, part in zip(places, content, strict=True):
            name, entry = _entry_of(answer["ec_transfer_params"], place // len(encoders))
            uuid = part.get("uuid", name)
            found[place] = {
                "type": "image_embeds", "image_embeds": entry["metadata"], "uuid": uuid,
            }  # fmt: skip
            params[name] = entry
    return found, params


def _entry_of(reported: dict[str, Any], index: int) -> tuple[str, dict[str, Any]]:
    """The entry of an encoder request's picture number `index`; there is exactly one."""
    ((name, entry),) = [one for one in reported.items() if index in one[1]["item_indices"]]
    return name, entry


def _with_uuid(part: dict[str, Any]) -> dict[str, Any]:
    url = part["image_url"]["url"].encode()
    return {**part, "uuid": part.get("uuid") or hashlib.sha256(url).hexdigest()}


def _pictures(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in message["content"] if part["type"] == "image_url"]


def _referring(messages: Messages, found: list[dict[str, Any]]) -> Messages:
    stand_ins = iter(found)
    return [
        {
            **message,
            "content": [
                next(stand_ins) if part["type"] == "image_url" else part
                for part in message["content"]
            ],
        }
        for message in messages
    ]
