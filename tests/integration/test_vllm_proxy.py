"""Our workers behind vLLM's example proxy, which names pictures itself and sends them once."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import body_of, tokens
from tests.support.conversations import LONG, asking, picture
from tests.support.reference import reference_generate
from tests.support.stack import Process, Stack, call, idle, proxy, running
from tests.support.thinned import diagonal, thinned
from tests.support.vllm_proxy import CHAT, run

TOKENS = 6
ONE = asking(picture(71), "What is in this image?")
SEVERAL = asking(
    "Compare", picture(72), "with", picture(73, 320, 200), "and", picture(74), "please"
)
TWICE = asking(picture(75), "and again", picture(75), "the same?")


@dataclass
class Workers:
    stack: Stack
    encoders: list[Process]
    prefill: Process
    decode: Process
    proxy: Process

    def ask(self, body: dict[str, Any], *, encoders: int = 2, rewrite: bool = True) -> list[int]:
        """Token ids that vLLM's proxy gets."""
        stages = (self.encoders[:encoders], self.prefill, self.decode)
        answer = run(*stages, body, rewrite=rewrite)
        ids: list[int] = answer["choices"][0]["token_ids"]
        return ids

    def counter(self, process: Process, name: str) -> int:
        return int(call(f"{process.url}/integrity")[1]["counters"][name])


@pytest.fixture(scope="module")
def workers(model_dir: ModelDir) -> Iterator[Workers]:
    with running(model_dir("qwen2_5_vl")) as stack:
        started = stack.started("encoder", "encoder", "prefill", "decode")
        first, second, prefill, decode = started
        ours = proxy(stack, [first, second], [prefill], [decode])
        yield Workers(stack, [first, second], prefill, decode, ours)
        for process in started:
            idle(process)
        assert set(stack.stop()) == {0}


def asked(messages: Any, **fields: Any) -> dict[str, Any]:
    return body_of(messages, max_tokens=TOKENS, ignore_eos=True, **fields)


MESSAGES = {"text": asking(LONG), "one": ONE, "several": SEVERAL, "twice": TWICE}
ENCODERS, REWRITES = (1, 2), (True, False)


@pytest.mark.parametrize(
    ("name", "encoders", "rewrite"),
    thinned(
        product(MESSAGES, ENCODERS, REWRITES),
        lambda name, encoders, rewrite: (list(MESSAGES).index(name) + encoders) % 2 == rewrite,
    ),
)
def test_the_tokens_are_right(workers: Workers, name: str, encoders: int, rewrite: bool) -> None:
    messages = MESSAGES[name]
    expected = reference_generate(workers.stack.model, messages, TOKENS, ignore_eos=True)
    before = workers.counter(workers.decode, "kv_fetched")
    assert workers.ask(asked(messages), encoders=encoders, rewrite=rewrite) == expected
    assert workers.counter(workers.decode, "kv_fetched") > before
    assert tokens(workers.proxy, messages, max_tokens=TOKENS, ignore_eos=True) == expected


UUIDS = (("a", "a"), ("a", "b"), ("my picture/1", "../2"), (None, "b"))


@pytest.mark.parametrize(("uuids", "encoders"), diagonal(UUIDS, ENCODERS))
def test_the_clients_own_uuids(
    workers: Workers, uuids: tuple[str | None, ...], encoders: int
) -> None:
    """Any text may be one; the same picture may have several."""
    body = asked(TWICE)
    parts = [part for part in body["messages"][0]["content"] if part["type"] == "image_url"]
    for part, uuid in zip(parts, uuids, strict=True):
        if uuid is not None:
            part["uuid"] = uuid
    expected = reference_generate(workers.stack.model, TWICE, TOKENS, ignore_eos=True)
    assert workers.ask(body, encoders=encoders) == expected


def test_a_uuid_names_a_picture_of_its_own_request_only(workers: Workers) -> None:
    """Two requests that call different pictures by one name each get their own."""
    for seed in (81, 82):
        messages = asking(picture(seed), "What is in this image?")
        body = asked(messages)
        body["messages"][0]["content"][0]["uuid"] = "the picture"
        expected = reference_generate(workers.stack.model, messages, TOKENS, ignore_eos=True)
        assert workers.ask(body) == expected


def test_one_uuid_for_two_pictures_is_refused(workers: Workers) -> None:
    body = asked(SEVERAL)
    for part in body["messages"][0]["content"]:
        part["uuid"] = "same"
    status, answer = call(workers.encoders[0].url + CHAT, body)
    assert status == 400 and "same" in answer["error"]["message"]


def test_a_cached_reference_is_found_by_what_was_reported(workers: Workers) -> None:
    body = asked(ONE)
    part = body["messages"][0]["content"][0]
    part["uuid"] = "seen"
    entries = call(workers.encoders[0].url + CHAT, body)[1]["ec_transfer_params"]
    part["image_url"] = None
    status, answer = call(workers.decode.url + CHAT, {**body, "ec_transfer_params": entries})
    assert status == 200, answer
    expected = reference_generate(workers.stack.model, ONE, TOKENS, ignore_eos=True)
    assert answer["choices"][0]["token_ids"] == expected
