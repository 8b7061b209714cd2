"""What one client sends to a real proxy harms no other: it is refused, the workers stay in use."""

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from benchmarks.attack.bombs import ico, png, qoi, url_of
from benchmarks.fuzz.servers import HEADERS
from tests.security.conftest import HELLO, Site
from tests.support.stack import call

CHAT = "/v1/chat/completions"
TIMES = 3  # once more than there are attempts at two workers
BOMB = "data:image/x-icon;base64," + base64.b64encode(ico(13_000)).decode()


def showing(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}]}


ATTACKS: dict[str, tuple[dict[str, Any], set[int]]] = {
    "a priority of 100 bits": ({"priority": 10**30}, {400}),
    "an unsigned priority": ({"priority": 2**64 - 1}, {400}),
    "jumping the queue": ({"priority": -1}, {400}),
    "a number of choices": ({"n": 10**30}, {400}),
    "a number of tokens": ({"max_tokens": 10**30}, {400}),
    "a biased token": ({"logit_bias": {"1000000": 1}}, {400}),
    "a stop token": ({"stop_token_ids": [1_000_000], "min_tokens": 2}, {400}),
    "many alternatives": ({"logprobs": True, "top_logprobs": 10_000}, {400}),
    "a negative temperature": ({"temperature": -1}, {400}),
    "a large min_p": ({"min_p": 2}, {400}),
    "handles": ({"kv_transfer_params": {"a": [{"b": 2**70}]}}, {400}),
    "an icon with a PNG inside": (showing(BOMB), {400}),
    "a QOI": (showing(url_of(qoi(100_000))), {400}),
    "a PNG of too many pixels": (showing(url_of(png(9000))), {400, 413}),
    "hosts without an address": (
        showing(*(f"http://{number}.invalid/a.png" for number in range(32))), {400, 422}),
    "labels that are none": (showing("http://xn--/", f"http://{'a' * 300}/"), {400}),
    "the fleet's own addresses": (showing("http://192.88.99.1/a", "http://[3fff::1]/"), {400}),
}  # fmt: skip
RELAYED = {"a biased token", "a stop token", "jumping the queue", "handles"}
"""What only a worker with the model can tell, and what a relay leaves out."""


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_refused_and_others_are_served(site: Site, name: str) -> None:
    fields, expected = ATTACKS[name]
    renders = [site.proxies[0], site.proxies[2], site.worker]
    media = "image_url" in str(fields)
    asked = renders if media or name in RELAYED else [*renders, site.proxies[1]]
    with ThreadPoolExecutor(TIMES * len(asked)) as pool:
        answers = list(
            pool.map(
                lambda one: call(one.url + CHAT, {**HELLO, **fields}, headers=HEADERS),
                asked * TIMES,
            )
        )
    assert {status for status, _ in answers} <= expected, answers[0]
    assert all(answer["error"]["type"] == "invalid_request_error" for _, answer in answers)
    assert {status for status, _ in site.served()} == {200}
    assert site.in_use() == ["up"] * 3
