"""Workers that speak vLLM's protocol, a master that probes them, and a proxy that asks it."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support import waiting
from tests.support.clients import body_of, streamed
from tests.support.conversations import asking, picture
from tests.support.masters import instances
from tests.support.stack import Process, Stack, call, metric, running

ROLES = ("encode", "prefill", "decode")
LONG = "You are a patient assistant who looks at pictures of shapes. " * 12
# The master learns how fast the workers are by how long calls take: of two that are alike one looks
# slower by what else the machine did meanwhile. A cached prefix has to save far more than that.
SLOW = "--prefill-token-ms", "5"
until = partial(waiting.until, bound_s=20.0)


@dataclass
class Site:
    """Two workers of each role, which do not register; `proxies` by whether they have the model."""

    stack: Stack
    master: Process
    workers: dict[str, list[Process]]
    proxies: dict[str, Process]

    def counter(self, role: str, name: str) -> list[float]:
        return [call(f"{w.url}/integrity")[1]["counters"][name] for w in self.workers[role]]

    def gained(self, role: str, name: str, before: list[float]) -> list[float]:
        return [now - then for now, then in zip(self.counter(role, name), before, strict=True)]


def up(process: Process) -> int:
    states = call(f"{process.url}/health")[1]
    return sum(state == "up" for role in ROLES for state in states[role].values())


@pytest.fixture(scope="module")
def site(model_dir: ModelDir) -> Iterator[Site]:
    model = model_dir("qwen2_5_vl")
    with running(model) as stack:
        flags = ("--admin-api-key", "secret", "--probe-interval", "0.1")
        master = stack.start_plain("services.master", *flags)
        workers = {role: [mock(stack, role, *SLOW) for _ in range(2)] for role in ROLES}
        master.wait_ready()
        for role, some in workers.items():
            for worker in some:
                body = {"role": role, "url": worker.wait_ready()}
                assert instances(master, "POST", body)[0] == 200
        asks = ("--master-url", master.url, "--probe-interval", "0.2", "--log-level", "info")
        proxies = {
            "without": stack.start_plain("proxy", "--dialect", "openai", *asks),
            "with": stack.start("proxy", *asks),
        }
        for proxy in proxies.values():
            proxy.wait_ready()
            until(lambda proxy=proxy: up(proxy) == 6)
        yield Site(stack, master, workers, proxies)


def mock(stack: Stack, role: str, *flags: str, speed: float = 20) -> Process:
    return stack.start(
        "services.mock", "--role", role, "--dialect", "openai", "--speed", str(speed),
        "--log-level", "warning", *flags,
    )  # fmt: skip


def asked(proxy: Process, number: int, text: str, **more: Any) -> dict[str, Any]:
    body = {**body_of(asking(picture(number), text)), "model": "tiny", "max_tokens": 8, **more}
    status, answer = call(f"{proxy.url}/v1/chat/completions", body)
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


def learnt(master: Process, model: str) -> bool:
    """Whether the master knows the speed of the one worker of a model."""
    views = call(f"{master.url}/workers")[1]["workers"]
    (rates,) = (view["rates"] for view in views if view["info"]["model"] == model)
    return bool(rates.get("prefill_ms_per_token") and rates.get("decode_base_ms"))


@pytest.mark.parametrize("kind", ["without", "with"])
def test_a_repeated_picture_and_prefix_meet_their_caches(site: Site, kind: str) -> None:
    """A picture is encoded at most once at each encoder; a prompt that begins
    as an earlier one goes where that one's KV is, even if another worker is less busy."""
    proxy, first = site.proxies[kind], 100 if kind == "with" else 200
    # By speeds that are measured: where a machine stands still, a prompt may go elsewhere.
    assert any(meet_their_caches(site, proxy, kind, first + 10 * n) for n in range(3))


def meet_their_caches(site: Site, proxy: Process, kind: str, salt: int) -> bool:
    """Whether nine of twelve prompts, which begin as an earlier one, found what that one left."""
    encoded = site.counter("encode", "mm_encoded")
    cached = {role: site.counter(role, "cached_tokens") for role in ("prefill", "decode")}
    placed = metric(proxy, 'proxy:placements_total{by="master"}')
    for turn in range(4):
        for number in range(3):
            asked(proxy, salt + number, f"{kind} {salt + number} {LONG} And now, turn {turn}?")
            until(lambda: metric(site.master, "master:requests_in_flight") == 0)
    assert metric(proxy, 'proxy:placements_total{by="master"}') - placed == 12
    gained = site.gained("encode", "mm_encoded", encoded)
    assert sum(gained) >= 3 and all(count <= 3 for count in gained)
    # An idle decode worker that holds a prompt computes the little that is left of it.
    tokens = sum(sum(site.gained(role, "cached_tokens", before)) for role, before in cached.items())
    return tokens >= 9 * len(LONG)


def test_the_master_sees_what_is_under_way_and_what_is_over(site: Site) -> None:
    proxy = site.proxies["without"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: asked(proxy, 300 + n, f"Number {n}?", max_tokens=30), range(16)))
    until(lambda: metric(site.master, "master:requests_in_flight") == 0)


@pytest.mark.parametrize(
    ("kind", "wanted", "said"),
    [("without", 404, "no worker here has"), ("with", 400, "it generates text")],
)
def test_a_route_that_no_worker_has_is_not_asked_for_again_and_again(
    site: Site, kind: str, wanted: int, said: str
) -> None:
    """A master places by role: it names a decode worker again, however many lack the route. A proxy
    that knows the model says what that does instead."""
    url = f"{site.proxies[kind].url}/v1/embeddings"
    status, answer = call(url, {"model": "tiny", "input": "x"})
    assert status == wanted and said in answer["error"]["message"]


@pytest.mark.parametrize("kind", ["without", "with"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_a_relayed_request_overtakes_the_others_no_more_than_a_rendered_one(
    site: Site, kind: str, path: str
) -> None:
    """Refused before it is placed or sent to a worker, on the hot path and on a route that is
    passed on."""
    proxy = site.proxies[kind]
    placed = metric(proxy, 'proxy:placements_total{by="master"}')
    body = {**body_of(asking(picture(1), "Hello?")), "prompt": "Hi", "input": "x", "model": "tiny"}
    status, answer = call(proxy.url + path, {**body, "priority": -1})
    error = answer["error"]
    assert (status, error["param"]) == (400, "priority")
    assert error["message"].startswith("priority must be at least 0 here, not -1")
    assert metric(proxy, 'proxy:placements_total{by="master"}') == placed


def test_streams_are_placed_too(site: Site) -> None:
    proxy = site.proxies["without"]
    before = metric(proxy, 'proxy:placements_total{by="master"}')
    body = {**body_of(asking(picture(1), "Hello?")), "model": "tiny", "max_tokens": 5}
    events = streamed(proxy, "/v1/chat/completions", body)
    assert events[-1] == "data: [DONE]" and len(events) > 5
    assert metric(proxy, 'proxy:placements_total{by="master"}') == before + 1
    until(lambda: metric(site.master, "master:requests_in_flight") == 0)


def test_a_prefill_worker_encodes_what_a_slow_encoder_has_no_time_for(
    model_dir: ModelDir,
) -> None:
    """Six pictures at once, 0.5 s each at the only encoder: those that would wait there longest go
    to the prefill worker with their bytes, and every answer is as it would be without."""
    with running(model_dir("qwen2_5_vl")) as stack:
        master = stack.start_plain(
            "services.master", "--admin-api-key", "secret", "--probe-interval", "0.1",
            "--encode-ms-per-token", "8",
        )  # fmt: skip
        slow = "--encode-base-ms", "500", "--media-tokens", "64"
        workers = {role: mock(stack, role, *slow, speed=1) for role in ROLES}
        master.wait_ready()
        for role, worker in workers.items():
            body = {"role": role, "url": worker.wait_ready(), "encodes": role == "prefill"}
            assert instances(master, "POST", body)[0] == 200
        asks = "--master-url", master.url, "--probe-interval", "0.2"
        proxy = stack.start_plain("proxy", "--dialect", "openai", *asks)
        proxy.wait_ready()
        until(lambda: up(proxy) == 3)
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda n: asked(proxy, 900 + n, f"What is {n}?"), range(6)))
        encoded = {
            role: call(f"{workers[role].url}/integrity")[1]["counters"]["mm_encoded"]
            for role in ("encode", "prefill")
        }
        assert sum(encoded.values()) == 6 and min(encoded.values()) >= 1
        again = [asked(proxy, 900 + n, f"What is {n}?") for n in range(6)]
        told = [[answer["choices"][0]["message"] for answer in some] for some in (found, again)]
        assert told[0] == told[1]


def test_an_unknown_model_is_the_clients_own_fault(site: Site) -> None:
    body = {**body_of(asking(picture(1), "Hello?")), "model": "no-such-model"}
    status, answer = call(f"{site.proxies['without'].url}/v1/chat/completions", body)
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_requests_go_on_without_the_master_and_with_it_again(site: Site) -> None:
    proxy = site.proxies["without"]
    site.master.process.send_signal(signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 30
        while metric(proxy, "proxy:master_present"):
            assert time.monotonic() < deadline
            asked(proxy, 401, "Still there?")
        asked(proxy, 402, "And now?")
    finally:
        site.master.process.send_signal(signal.SIGCONT)
    until(lambda: metric(proxy, "proxy:master_present") == 1)
    asked(proxy, 403, "Back again?")


def test_one_proxy_serves_the_models_that_a_master_knows(model_dir: ModelDir) -> None:
    """Each by its workers, also by the proxy's last view once the master has gone. Meanwhile the
    master learns how long prompts take where decode workers compute them."""
    with running(model_dir("qwen3")) as stack:
        flags = ("--admin-api-key", "secret", "--probe-interval", "0.1")
        master = stack.start_plain("services.master", *flags)
        names = ("tiny", "other")
        workers = [mock(stack, "decode", "--served-model-name", name) for name in names]
        master.wait_ready()
        for worker in workers:
            body = {"role": "decode", "url": worker.wait_ready()}
            assert instances(master, "POST", body)[0] == 200
        proxy = stack.start_plain("proxy", "--dialect", "openai", "--master-url", master.url)
        proxy.wait_ready()
        until(lambda: call(f"{proxy.url}/v1/models/other")[0] == 200)
        until(lambda: call(f"{proxy.url}/v1/models/tiny")[0] == 200)
        listed = call(f"{proxy.url}/v1/models")[1]["data"]
        assert sorted(card["id"] for card in listed) == ["other", "tiny"]
        # A few tokens may come as one event, which tells nothing of a step.
        wanted = {"model": "tiny", "prompt": LONG, "max_tokens": 40}
        until(lambda: bool(streamed(proxy, "/v1/completions", wanted)) and learnt(master, "tiny"))
        for gone in (False, True):
            if gone:
                master.process.kill()
            for name in names:
                wanted = {"model": name, "prompt": "Hello", "max_tokens": 2}
                answers = [call(f"{proxy.url}/v1/completions", wanted) for _ in range(4)]
                assert [status for status, _ in answers] == [200] * 4, (gone, answers)
            status, answer = call(f"{proxy.url}/v1/completions", {"model": "third", "prompt": "x"})
            assert (status, answer["error"]["code"]) == (404, "model_not_found")
