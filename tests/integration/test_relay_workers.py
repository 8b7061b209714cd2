"""The `openai` dialect before our own workers, which speak vLLM's handshake too."""

import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.conftest import ModelDir
from tests.support.clients import body_of, tokens
from tests.support.conversations import LONG, asking, picture, picture_cases
from tests.support.reference import reference_generate
from tests.support.relay_workers import CHAT
from tests.support.stack import Process, Stack, call, idle, proxy, running

TEMPLATE = 16  # a block of tokens with which all prompts begin


@dataclass
class Both:
    stack: Stack
    tokens: Process
    openai: Process
    mixed: Process
    workers: list[Process]


@pytest.fixture(scope="module")
def both(model_dir: ModelDir) -> Iterator[Both]:
    """The same workers behind a proxy of each dialect, and one that is left to find out."""
    with running(model_dir("qwen2_5_vl")) as stack:
        encode, prefill, decode = (
            stack.start(f"services.{name}") for name in ("encoder", "prefill", "decode")
        )
        for process in (encode, prefill, decode):
            process.wait_ready()
        stages = ([encode], [prefill], [decode])
        yield Both(
            stack,
            proxy(stack, *stages, "--dialect", "tokens"),
            proxy(stack, *stages, "--dialect", "openai"),
            proxy(stack, *stages),
            [encode, prefill, decode],
        )
        for process in (encode, prefill, decode):
            idle(process)
        assert set(stack.stop()) == {0}


def received(both: Both) -> list[int]:
    reports = [call(f"{worker.url}/integrity")[1]["counters"] for worker in both.workers]
    return [int(report.get("mm_received_bytes", 0)) for report in reports]


def test_both_dialects_give_the_same_tokens(both: Both) -> None:
    for case in picture_cases():
        expected = reference_generate(both.stack.model, case, 10, ignore_eos=True)
        for server in (both.openai, both.tokens, both.mixed):
            assert tokens(server, case, max_tokens=10, ignore_eos=True) == expected


def test_one_uuid_for_two_pictures_does_not_mix_them_up(both: Both) -> None:
    """The relay encodes each by itself, and names it by its content from then on."""
    case = picture_cases()[3]
    body = body_of(case, max_tokens=10, ignore_eos=True)
    for part in body["messages"][0]["content"]:
        part["uuid"] = "the same"
    expected = reference_generate(both.stack.model, case, 10, ignore_eos=True)
    for server in (both.openai, both.tokens):
        status, answer = call(server.url + CHAT, body)
        assert status == 200, answer
        assert answer["choices"][0]["token_ids"] == expected


def test_our_decode_fetches_what_the_relay_hands_over(both: Both) -> None:
    def fetched() -> int:
        report = call(f"{both.workers[2].url}/integrity")[1]
        return int(report["counters"]["kv_fetched"])

    before = fetched()
    tokens(both.openai, asking(picture(900), LONG), max_tokens=6)
    assert fetched() > before


def test_our_workers_are_known_by_probing(both: Both) -> None:
    """The proxy that found out by itself takes the tokens way: it can tokenize."""
    status, answer = call(f"{both.mixed.url}/tokenize", {"prompt": "hello"})
    assert status == 200 and answer["count"] >= 1
    relayed = "requests_in_flight"
    body = body_of(asking("Hello"), max_tokens=2)
    for server, used in ((both.mixed, 0), (both.openai, 1)):
        call(server.url + CHAT, body)
        assert (
            scrape(server, "client_bytes_total") > 0
            if used
            else (scrape(server, "client_bytes_total") == 0)
        )
        assert scrape(server, relayed) == 0


def scrape(server: Process, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith(f"triptych_proxy:{name}"))


def test_a_proxy_without_a_model_passes_on_what_workers_say(both: Both) -> None:
    status, models = call(f"{both.openai.url}/v1/models")
    assert status == 200 and models["data"][0]["id"] == "tiny"
    status, answer = call(f"{both.openai.url}/tokenize", {"prompt": "hello"})
    assert status == 200 and answer == call(f"{both.tokens.url}/tokenize", {"prompt": "hello"})[1]
    assert call(f"{both.openai.url}/health")[0] == 200
    status, schema = call(f"{both.openai.url}/openapi.json")
    assert status == 200 and CHAT in schema["paths"]


def test_both_dialects_tell_what_was_cached(both: Both) -> None:
    """A prompt that no worker has seen is not told as cached, though decode has it from prefill."""
    for number, server in enumerate((both.openai, both.tokens)):
        body = body_of(asking(f"{number} {LONG}"), max_tokens=4)
        found = []
        for _ in range(2):
            usage = call(server.url + CHAT, body)[1]["usage"]
            found.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert found[0] <= TEMPLATE < found[1] < usage["prompt_tokens"]
