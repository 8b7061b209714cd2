"""Mock workers as processes: behind the real proxy, behind vLLM's handshake, with a master."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from services.mock.tokens import Vocabulary
from tests.conftest import ModelDir
from tests.support.clients import body_of, complete
from tests.support.conversations import asking, picture
from tests.support.mocks import (
    CHAT,
    GENERATE,
    HAND_OVER,
    Stream,
    ask,
    counters,
    generate_body,
    mock,
)
from tests.support.stack import Process, Stack, call, idle, proxy, running


@dataclass
class Fleet:
    stack: Stack
    encode: Process
    prefill: Process
    decode: Process
    single: Process

    @property
    def workers(self) -> tuple[Process, ...]:
        return self.encode, self.prefill, self.decode, self.single


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir) -> Iterator[Fleet]:
    """One worker of each role, and one that does it all."""
    with running(model_dir("qwen2_5_vl")) as stack:
        encode = mock(stack, "encode")
        asks = ("--encode-servers-urls", encode.url)
        workers = [mock(stack, role, *asks) for role in ("prefill", "decode", "pdfusion")]
        yield Fleet(stack, encode, *workers)
        for worker in (encode, *workers):
            idle(worker)


@pytest.fixture(scope="module")
def proxies(fleet: Fleet) -> dict[str, Process]:
    encode, prefill, decode = [fleet.encode], [fleet.prefill], [fleet.decode]
    return {
        "E+P+D": proxy(fleet.stack, encode, prefill, decode),
        "E+PD": proxy(fleet.stack, encode, [], decode),
        "P+D": proxy(fleet.stack, [], prefill, decode),
        "one": proxy(fleet.stack, [], [], [fleet.single]),
    }


@pytest.mark.parametrize("params", [{}, {"temperature": 1, "seed": 7, "n": 2}])
def test_text_gets_the_same_tokens_in_every_topology(
    proxies: dict[str, Process], fleet: Fleet, params: dict[str, Any]
) -> None:
    case = asking(f"Tell me about {sorted(params)}")
    before = counters(fleet.decode)["kv_fetched"]
    answers = {name: complete(server, case, max_tokens=12, **params)["choices"]
               for name, server in proxies.items()}  # fmt: skip
    tokens = {name: [c["token_ids"] for c in choices] for name, choices in answers.items()}
    assert all(found == tokens["one"] for found in tokens.values()), tokens
    assert len({tuple(choice) for choice in tokens["one"]}) == params.get("n", 1)
    assert all(len(choice) == 12 for choice in tokens["one"])
    assert counters(fleet.decode)["kv_fetched"] == before + 2


def test_pictures_get_the_same_tokens_and_are_encoded_once(
    proxies: dict[str, Process], fleet: Fleet
) -> None:
    case = asking("Compare", picture(71), "with", picture(72, 320, 200))
    before = counters(fleet.encode)["mm_encoded"]
    answers = [
        complete(proxies[name], case, max_tokens=9)["choices"][0]["token_ids"]
        for name in ("E+P+D", "E+PD", "E+P+D")
    ]
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 9
    assert counters(fleet.encode)["mm_encoded"] == before + 2
    other = complete(proxies["E+PD"], asking("Compare", picture(73), "with", picture(72, 320, 200)),
                     max_tokens=9)["choices"][0]["token_ids"]  # fmt: skip
    assert other != answers[0]


def test_a_repeated_prompt_is_reused_by_prefill(proxies: dict[str, Process]) -> None:
    case = asking("A prompt that is long enough to fill some blocks. " * 4)
    usages = [complete(proxies["E+P+D"], case, max_tokens=4)["usage"] for _ in range(2)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[0] < cached[1] <= usages[1]["prompt_tokens"]


def test_many_at_once_are_batched_and_all_right(proxies: dict[str, Process], fleet: Fleet) -> None:
    cases = [asking(f"Question number {number}") for number in range(24)]
    before = counters(fleet.decode)["steps"]
    with ThreadPoolExecutor(24) as pool:
        whole = list(pool.map(lambda c: complete(proxies["E+P+D"], c, max_tokens=20), cases))
    steps = counters(fleet.decode)["steps"] - before
    assert steps < 24 * 19
    for case, answer in zip(cases, whole, strict=True):
        alone = complete(proxies["one"], case, max_tokens=20)
        assert answer["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]


@pytest.mark.parametrize("name", ["E+P+D", "E+PD"])
def test_a_client_that_leaves_frees_every_stage(
    proxies: dict[str, Process], fleet: Fleet, name: str
) -> None:
    case = body_of(asking(picture(75), f"Long {name}"), max_tokens=1500, stream=True)
    assert call(f"{fleet.decode.url}/faults", {"kind": "slow", "factor": 40})[0] == 200
    try:
        stream = Stream(proxies[name].url, CHAT, case)
        for _ in range(4):
            next(stream.events())
        assert call(f"{fleet.decode.url}/load")[1]["server_load"] == 1
        stream.leave()
        for worker in fleet.workers:
            idle(worker)
    finally:
        call(f"{fleet.decode.url}/faults", method="DELETE")


def test_vllms_handshake_with_references_instead_of_media(fleet: Fleet) -> None:
    """What an EPD proxy does: every item to the encoder, then handles and metadata only."""
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "What is this?"}
    ask_body = {"max_tokens": 10, "temperature": 0, "return_token_ids": True}

    def said(*parts: Any, **more: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": list(parts)}], **ask_body, **more}

    expected = ask(fleet.single, CHAT, said(url, text))["choices"][0]["token_ids"]
    entries = ask(fleet.encode, CHAT, said(url, max_tokens=1))["ec_transfer_params"]
    ((name, entry),) = entries.items()
    assert entry["modality"] == "image" and entry["item_indices"] == [0]
    reference = {"type": "image_embeds", "image_embeds": entry["metadata"], "uuid": name}
    body = said(reference, text, ec_transfer_params=entries)
    first = ask(fleet.prefill, CHAT, {**body, "max_tokens": 1, "kv_transfer_params": HAND_OVER})
    params = first["kv_transfer_params"]
    assert params["remote_num_tokens"] == first["usage"]["prompt_tokens"]
    answer = ask(fleet.decode, CHAT, {**body, "kv_transfer_params": params})
    assert answer["choices"][0]["token_ids"] == expected
    assert first["choices"][0]["token_ids"] == expected[:1]
    stream = Stream(fleet.decode.url, CHAT, {
        **body, "stream": True, "stream_options": {"include_usage": True},
    })  # fmt: skip
    *events, done = list(stream.events())
    chunks = [json.loads(event) for event in events]
    assert done == b"[DONE]" and chunks[-1]["usage"]["completion_tokens"] == 10
    deltas = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [t for delta in deltas for t in delta.get("token_ids", ())] == expected
    assert "".join(d["delta"].get("content") or "" for d in deltas) == bytes(expected).decode()
    assert [d["finish_reason"] for d in deltas if d["finish_reason"]] == ["length"]
    stream.leave()


def test_completions_take_texts_and_ids(fleet: Fleet) -> None:
    body = {"prompt": ["Hello", "you"], "max_tokens": 5, "return_token_ids": True}
    answer = ask(fleet.decode, "/v1/completions", body)
    expected = [Vocabulary().answer(list(text), length=5) for text in (b"Hello", b"you")]
    assert [choice["token_ids"] for choice in answer["choices"]] == expected
    assert answer["usage"] == {**answer["usage"], "prompt_tokens": 8, "completion_tokens": 10}
    (card,) = call(f"{fleet.decode.url}/v1/models")[1]["data"]
    assert card["id"] == "tiny" and card["root"]


def test_emitted_tokens_are_continued_and_counted(fleet: Fleet) -> None:
    expected = Vocabulary().answer([5, 6], length=8)
    body = generate_body([5, 6], emitted={"0": expected[:3]})
    answer = ask(fleet.decode, GENERATE, body)
    assert answer["choices"][0]["token_ids"] == expected[3:]
    assert answer["usage"]["completion_tokens"] == 8


def test_a_deadline_ends_a_request_with_504(fleet: Fleet) -> None:
    status, answer = call(fleet.decode.url + GENERATE, generate_body([1], 9999, deadline_s=0.05))
    assert status == 504 and answer["error"]["code"] == "deadline_exceeded"


def test_a_dead_prefill_worker_costs_decode_a_computation(fleet: Fleet) -> None:
    prefill = mock(fleet.stack, "prefill")
    prompt = list(range(60))
    handle = ask(prefill, GENERATE, generate_body(prompt, kv_transfer_params=HAND_OVER))
    assert counters(prefill)["steps"] == 1
    prefill.kill()
    before = counters(fleet.decode)
    params = handle["kv_transfer_params"]
    answer = ask(fleet.decode, GENERATE, generate_body(prompt, kv_transfer_params=params))
    assert answer["choices"][0]["token_ids"] == Vocabulary().answer(prompt, length=8)
    after = counters(fleet.decode)
    assert after["kv_failed"] == before["kv_failed"] + 1
    assert answer["usage"]["cached_tokens"] == 0


def test_a_lease_that_lapses_is_noticed(fleet: Fleet) -> None:
    prefill = mock(fleet.stack, "prefill", "--kv-lease", "0.2")
    prompt = list(range(100, 160))
    handle = ask(prefill, GENERATE, generate_body(prompt, kv_transfer_params=HAND_OVER))
    report = idle(prefill, timeout_s=2.0)
    assert report["counters"]["kv_expired"] == 1
    before = counters(fleet.decode)["kv_failed"]
    params = handle["kv_transfer_params"]
    answer = ask(fleet.decode, GENERATE, generate_body(prompt, kv_transfer_params=params))
    assert answer["choices"][0]["token_ids"] == Vocabulary().answer(prompt, length=8)
    assert counters(fleet.decode)["kv_failed"] == before + 1


def test_bad_input_gets_a_clear_error(fleet: Fleet) -> None:
    cases: list[tuple[Process, str, Any, int, str | None]] = [
        (fleet.decode, GENERATE, b"{", 400, None),
        (fleet.decode, GENERATE, {"token_ids": "x"}, 400, "token_ids"),
        (fleet.decode, GENERATE, generate_body([]), 400, "token_ids"),
        (fleet.decode, GENERATE, generate_body([1], 10**6), 400, "token_ids"),
        (fleet.decode, GENERATE, generate_body([1], model="other"), 404, "model"),
        (fleet.decode, GENERATE, generate_body([1], kv_transfer_params={"do_remote_prefill": True}),
         400, "kv_transfer_params"),
        (fleet.decode, "/inference/v1/encode", {}, 404, None),
        (fleet.encode, GENERATE, generate_body([1]), 404, None),
        (fleet.encode, CHAT, {"messages": [{"role": "user", "content": "hi"}]}, 400, "messages"),
        (fleet.decode, CHAT, {"messages": []}, 400, "messages"),
        (fleet.decode, "/abort_requests", {"request_ids": 3}, 400, "request_ids"),
        (fleet.decode, "/faults", {"kind": "sing"}, 400, "faults"),
    ]  # fmt: skip
    for worker, path, body, status, param in cases:
        found, answer = call(worker.url + path, body)
        assert (found, answer["error"]["param"]) == (status, param), (path, body, answer)


def test_a_drained_worker_takes_no_more(fleet: Fleet) -> None:
    worker = mock(fleet.stack, "decode")
    assert call(f"{worker.url}/drain", b"")[0] == 200
    assert call(f"{worker.url}/ready")[0] == 503 and call(f"{worker.url}/health")[0] == 200
    assert call(worker.url + GENERATE, generate_body([1]))[0] == 503
