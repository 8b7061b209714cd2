"""Our workers driven the way vLLM's EPD proxies drive theirs: chat requests and handles only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import body_of, openai_messages
from tests.support.clips import clip
from tests.support.conversations import LONG, asking, picture
from tests.support.reference import Messages, reference_generate
from tests.support.stack import Process, Stack, call, idle, proxy, running
from tests.support.thinned import thinned
from tests.support.transport_flags import TRANSPORTS, flags_of, need
from tests.support.vllm_proxy import ask

TOKENS = 6
CHAT = "/v1/chat/completions"
REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass
class Workers:
    stack: Stack
    encode: Process
    prefill: Process
    decode: Process

    @cached_property
    def relay(self) -> Process:
        return proxy(
            self.stack, [self.encode], [self.prefill], [self.decode], "--dialect", "openai"
        )

    def expected(self, name: str) -> list[int]:
        """Tokens of a conversation of those below."""
        return generated(self.stack.model, name)


@pytest.fixture(scope="module", params=list(TRANSPORTS))
def workers(
    request: pytest.FixtureRequest, model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    need(request.param)
    flags = flags_of(request.param, tmp_path_factory.mktemp("shared"))
    with running(model_dir("qwen2_5_vl")) as stack:
        names = ("encoder", "prefill", "decode")
        started = [stack.start(f"services.{name}", *flags) for name in names]
        for process in started:
            process.wait_ready()
        encode, prefill, decode = started
        yield Workers(stack, encode, prefill, decode)
        for process in started:
            idle(process)


WHATEVER_THE_TRANSPORT = pytest.mark.parametrize(
    "workers", thinned(([name] for name in TRANSPORTS), lambda name: name == "shm"), indirect=True
)
"""Of tests of what is said to workers: one transport is enough."""


def prime(workers: Workers, messages: Messages) -> dict[str, Any]:
    """One encode request per picture or clip, the text removed; what the encoders said of them."""
    params: dict[str, Any] = {}
    for message in messages:
        for part in message["content"]:
            if part["type"] != "text":
                alone = [{"role": "user", "content": [part]}]
                answer = ask(workers.encode, body_of(alone, max_tokens=1, stream=False))
                params |= answer["ec_transfer_params"]
    return params


def prefilled(workers: Workers, body: dict[str, Any]) -> dict[str, Any]:
    answer = ask(workers.prefill, {**body, "max_tokens": 1, "kv_transfer_params": REMOTE_DECODE})
    params: dict[str, Any] = answer["kv_transfer_params"]
    assert params["do_remote_prefill"] is True
    assert params["remote_num_tokens"] == answer["usage"]["prompt_tokens"]
    return params


CASES = {
    "text": asking(LONG),
    "picture": asking(picture(31), "What is in this image?"),
    "two pictures": asking("Compare", picture(32), "with", picture(33, 320, 200), "please"),
    "clip": asking("Watch", clip(34, frames=40, rate=3), "and say"),
    "image": asking(picture(41), "What is in this image?"),
    "video": asking(clip(41, frames=40, rate=3), "What is in this image?"),
    "new picture": asking(picture(80), "What is in this image?"),
    **{f"of a batch {i}": asking(picture(90 + i), "What is in this image?") for i in range(3)},
}


@lru_cache
def generated(model: Path, name: str) -> list[int]:
    return reference_generate(model, CASES[name], TOKENS, ignore_eos=True)


def check_the_seeds_proxy(workers: Workers, name: str) -> None:
    """No `ec_transfer_params` are passed on, the pictures go to every stage, and prefill's token
    is dropped: decode emits it again."""
    messages = CASES[name]
    prime(workers, messages)
    body = body_of(messages, max_tokens=TOKENS, ignore_eos=True)
    params = prefilled(workers, body)
    before = fetched(workers)
    answer = ask(workers.decode, {**body, "kv_transfer_params": params})
    assert answer["choices"][0]["token_ids"] == workers.expected(name)
    assert fetched(workers) == before + 1


def fetched(workers: Workers) -> int:
    return int(call(f"{workers.decode.url}/integrity")[1]["counters"]["kv_fetched"])


def test_the_seeds_proxy_gets_the_right_tokens(workers: Workers) -> None:
    check_the_seeds_proxy(workers, "two pictures")


@WHATEVER_THE_TRANSPORT
@pytest.mark.parametrize("name", ["text", "picture", "clip"])
def test_the_seeds_proxy_gets_the_right_tokens_of_all_kinds(workers: Workers, name: str) -> None:
    check_the_seeds_proxy(workers, name)


def check_references(workers: Workers, kind: str) -> None:
    """vLLM's newer proxy sends metadata and handles instead of the media."""
    entries = prime(workers, CASES[kind])
    ((name, entry),) = entries.items()
    assert entry["modality"] == kind and entry["item_indices"] == [0]
    form = f"{kind}_embeds"
    reference = {"type": form, form: entry["metadata"], "uuid": name}
    body = body_of(
        asking("What is in this image?"), max_tokens=TOKENS, ignore_eos=True,
        ec_transfer_params=entries,
    )  # fmt: skip
    body["messages"][0]["content"].insert(0, reference)
    params = prefilled(workers, body)
    answer = ask(workers.decode, {**body, "kv_transfer_params": params})
    assert answer["choices"][0]["token_ids"] == workers.expected(kind)


def test_references_without_pictures_are_enough(workers: Workers) -> None:
    check_references(workers, "image")


@WHATEVER_THE_TRANSPORT
def test_references_without_clips_are_enough(workers: Workers) -> None:
    check_references(workers, "video")


@WHATEVER_THE_TRANSPORT
def test_a_decode_worker_without_kv_prefills_by_itself(workers: Workers) -> None:
    entries = prime(workers, CASES["picture"])
    body = body_of(CASES["picture"], max_tokens=TOKENS, ignore_eos=True, ec_transfer_params=entries)
    answer = ask(workers.decode, body)
    assert answer["choices"][0]["token_ids"] == workers.expected("picture")


def response_of(relay: Process, parts: list[dict[str, Any]]) -> str:
    """What /v1/responses answers to text and pictures as chats have them."""
    content = [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["image_url"]["url"]}
        for part in parts
    ]
    answer = asked(
        relay, "/v1/responses", input=[{"role": "user", "content": content}],
        max_output_tokens=TOKENS, ignore_eos=True,
    )  # fmt: skip
    return str(answer["output"][0]["content"][0]["text"])


def message_of(relay: Process, parts: list[dict[str, Any]]) -> str:
    """As `response_of`, by /v1/messages; the pictures are what a tool has found."""
    content = [
        part if part["type"] == "text" else {"type": "image", "source": source_of(part)}
        for part in parts
    ]
    turns = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}],
        },
    ]
    answer = asked(relay, "/v1/messages", messages=turns, max_tokens=TOKENS)
    return str(answer["content"][0]["text"])


def source_of(part: dict[str, Any]) -> dict[str, Any]:
    kind, _, data = part["image_url"]["url"].removeprefix("data:").partition(";base64,")
    return {"type": "base64", "media_type": kind, "data": data}


def asked(relay: Process, path: str, **fields: Any) -> Any:
    status, answer = call(relay.url + path, {"model": "tiny", "temperature": 0, **fields})
    assert status == 200, answer
    return answer


def encoded(workers: Workers) -> int:
    counters = call(f"{workers.encode.url}/integrity")[1]["counters"]
    return int(counters["mm_encoded"])


@WHATEVER_THE_TRANSPORT
@pytest.mark.parametrize("answer_of", [response_of, message_of])
def test_a_relay_has_new_pictures_encoded_for_other_apis(
    answer_of: Callable[[Process, list[dict[str, Any]]], str], workers: Workers
) -> None:
    """Also the second time, out of the caches."""
    seed = 60 if answer_of is response_of else 70
    parts = openai_messages(asking(picture(seed), "and", picture(seed + 1, 320, 200)))[0]["content"]
    before = encoded(workers)
    first = answer_of(workers.relay, parts)
    assert first == answer_of(workers.relay, parts) and encoded(workers) == before + 2
    other = openai_messages(asking(picture(seed + 1), "and", picture(seed, 320, 200)))[0]["content"]
    assert answer_of(workers.relay, other) != first


@WHATEVER_THE_TRANSPORT
def test_a_response_with_a_new_picture_is_that_of_the_chat(workers: Workers) -> None:
    body = body_of(CASES["new picture"], max_tokens=TOKENS, ignore_eos=True)
    text = response_of(workers.relay, body["messages"][0]["content"])
    choice = ask(workers.relay, body)["choices"][0]
    assert text == choice["message"]["content"]
    assert choice["token_ids"] == workers.expected("new picture")


@WHATEVER_THE_TRANSPORT
def test_a_batch_with_new_pictures_is_that_of_its_chats(workers: Workers) -> None:
    names = [f"of a batch {i}" for i in range(3)]
    body = body_of(CASES[names[0]], max_tokens=TOKENS, ignore_eos=True)
    body["messages"] = [openai_messages(CASES[name]) for name in names]
    choices = asked(workers.relay, f"{CHAT}/batch", **body)["choices"]
    assert [choice["token_ids"] for choice in choices] == list(map(workers.expected, names))


@WHATEVER_THE_TRANSPORT
def test_a_picture_that_cannot_be_read_is_refused_in_the_words_of_its_api(workers: Workers) -> None:
    broken = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    content = [{"type": "input_text", "text": "?"}, broken]
    body = {"model": "tiny", "input": [{"role": "user", "content": content}]}
    status, answer = call(f"{workers.relay.url}/v1/responses", body)
    assert status == 400 and answer["error"]["param"] == "input", answer


def test_handles_that_name_no_offer_fall_back_to_computing(workers: Workers) -> None:
    """Blocks released, an unknown instance, another model's layout: the answer is still right."""
    body = body_of(CASES["text"], max_tokens=TOKENS, ignore_eos=True)
    expected = workers.expected("text")
    good = prefilled(workers, body)
    call(f"{workers.prefill.url}/abort_requests", {"request_ids": [good["remote_request_id"]]})
    own = good["triptych"]
    broken = [
        good,
        {**good, "remote_engine_id": "f" * 32},
        {**good, "remote_engine_id": "../escape"},
        {**good, "remote_block_ids": [[99999] * len(good["remote_block_ids"][0])]},
        {**good, "remote_num_tokens": 1},
        {**good, "triptych": {**own, "compatibility": "another model"}},
        {**good, "triptych": {**own, "descriptor": {"shape": [4, 4]}}},
    ]
    for params in broken:
        answer = ask(workers.decode, {**body, "kv_transfer_params": params})
        assert answer["choices"][0]["token_ids"] == expected, params
    status, answer = call(
        workers.decode.url + CHAT, {**body, "kv_transfer_params": {"do_remote_prefill": True}}
    )
    assert status == 400 and answer["error"]["param"] == "kv_transfer_params"
