"""Real workers, two of each role, with a master: what the fleet has computed once it does not
compute again, wherever that is, and even if its owner drains."""

import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import ModelDir
from tests.support import waiting
from tests.support.clients import all_up, complete
from tests.support.conversations import LONG, asking, picture
from tests.support.reference import Messages, reference_generate
from tests.support.stack import Process, Stack, call, idle, running

TOKENS = 4
BLOCK = 16
WAIT_S = 20.0
STEADY = 12  # looks in a row that must agree: events of caches may be late on a busy machine
until = partial(waiting.until, bound_s=WAIT_S)
SEEN = picture(701)
# Long, so that to compute it again takes longer than speeds differ that a busy machine measures.
PREFIX = ("Of this picture", SEEN, *[LONG] * 24)


@dataclass
class Fleet:
    stack: Stack
    master: Process
    encode: list[Process]
    prefill: list[Process]
    decode: list[Process]
    proxy: Process

    @property
    def workers(self) -> list[Process]:
        return [*self.encode, *self.prefill, *self.decode]

    def encoded(self) -> list[int]:
        """Pictures encoded so far, by encoder."""
        return [int(counters(encoder)["mm_encoded"]) for encoder in self.encode]

    def ask(self, messages: Messages) -> int:
        """Prompt tokens that were cached, once the master knows what the answer left behind."""
        answer = complete(self.proxy, messages, max_tokens=TOKENS)
        expected = reference_generate(self.stack.model, messages, TOKENS)
        assert answer["choices"][0]["token_ids"] == expected
        self.settle()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    def settle(self) -> None:
        """Until nothing runs, and what the master knows does not change any more."""
        seen: list[list[Any]] = []

        def still() -> bool:
            names = ("requests", "indexed_blocks", "indexed_media")
            seen.append([[view.get(name, 0) for name in names] for view in self.views()])
            return (
                len(seen) >= STEADY
                and all(s == seen[-1] for s in seen[-STEADY:])
                and not any(requests for requests, _, _ in seen[-1])
                and self.indexed()
            )

        until(still)

    def indexed(self) -> bool:
        """Whether the master knows as many blocks of each worker as that one holds."""
        held = {one.url: blocks_of(one) for one in (*self.prefill, *self.decode)}
        views = {view["info"]["url"]: view for view in self.views()}
        return all(views[url].get("indexed_blocks", 0) == held[url] for url in held)

    def views(self) -> list[Any]:
        return list(call(f"{self.master.url}/workers")[1]["workers"])

    def drain(self, worker: Process) -> None:
        assert call(f"{worker.url}/drain", {})[0] == 200
        until(
            lambda: any(v.get("draining") for v in self.views() if v["info"]["url"] == worker.url)
        )


def blocks_of(worker: Process) -> int:
    """How many its prefix cache holds."""
    return len(call(f"{worker.url}/cache_status", {})[1]["cached_keys"])


def counters(worker: Process) -> Any:
    return call(f"{worker.url}/integrity")[1]["counters"]


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir) -> Iterator[Fleet]:
    with running(model_dir("qwen2_5_vl")) as stack:
        master = stack.start_plain("services.master", "--lease", "5")
        told = ("--master-url", master.wait_ready(), "--heartbeat-interval", "0.2")
        encode, prefill, decode = (
            [stack.start(f"services.{role}", *told) for _ in range(2)]
            for role in ("encoder", "prefill", "decode")
        )
        for worker in (*encode, *prefill, *decode):
            worker.wait_ready()
        proxy = stack.start("proxy", "--master-url", master.url, "--probe-interval", "0.2")
        proxy.wait_ready()
        fleet = Fleet(stack, master, encode, prefill, decode, proxy)
        until(lambda: len(fleet.views()) == 6)
        until(lambda: all_up(proxy, 6))
        yield fleet
        for worker in fleet.workers:
            idle(worker)


def test_a_picture_is_encoded_once_and_a_prefix_with_it_prefilled_once(fleet: Fleet) -> None:
    """Also after the encoder and the prefill worker that have them drain."""
    assert fleet.ask(asking(*PREFIX, "How many are there?")) == 0
    common = complete(fleet.proxy, asking(*PREFIX), max_tokens=1)["usage"]["prompt_tokens"]
    fleet.settle()
    shared = (common - BLOCK) // BLOCK * BLOCK  # but for what the template puts behind a text
    assert shared > 6 * BLOCK
    for question in ("And of these?", "Which colour is the first?", "Is it day or night there?"):
        assert fleet.ask(asking(*PREFIX, question)) >= shared
    for before in ("Now look", "Once more, look", "Look for the last time"):
        assert fleet.ask(asking(before, SEEN, "What is this?")) < shared
    assert sorted(fleet.encoded()) == [0, 1]

    fleet.drain(fleet.encode[fleet.encoded().index(1)])
    computed = [counters(worker)["prompt_tokens"] for worker in fleet.prefill]
    fleet.drain(fleet.prefill[computed.index(max(computed))])
    assert fleet.ask(asking(*PREFIX, "What was it about?")) >= shared
    assert fleet.ask(asking("Somebody else looks", SEEN, "What is this?")) < shared
    assert sorted(fleet.encoded()) == [0, 1]


def test_the_master_shows_the_metrics_of_all_workers(fleet: Fleet) -> None:
    with urllib.request.urlopen(f"{fleet.master.url}/metrics/fleet", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = {sample.name: family.samples for family in families for sample in family.samples}
    urls = {worker.url for worker in fleet.workers}
    answered = samples["triptych_master:worker_metrics"]
    assert {sample.labels["worker"] for sample in answered if sample.value} == urls
    encoded = samples["triptych:mm_encoded_total"]
    assert sum(sample.value for sample in encoded) == sum(fleet.encoded())
    assert {s.labels["worker"] for s in encoded} == {worker.url for worker in fleet.encode}
    assert {s.labels["role"] for s in samples["process_open_fds"]} == {
        "encode",
        "prefill",
        "decode",
    }


def test_each_stage_of_a_request_counts_once_in_the_fleet(fleet: Fleet) -> None:
    before = totals(fleet.workers)
    usage = complete(
        fleet.proxy, asking("Of what no request has asked before", LONG), max_tokens=TOKENS
    )["usage"]
    fleet.settle()
    after = totals(fleet.workers)
    gained = {name: after[name] - before.get(name, 0.0) for name in after}
    assert gained["request_prompt_tokens_sum"] == usage["prompt_tokens"]
    assert gained["request_generation_tokens_sum"] == TOKENS
    for stage in ("queue_time", "prefill_time", "kv_wait", "decode_time"):
        assert gained[f"request_{stage}_seconds_count"] == 1, stage
        assert gained[f"request_{stage}_seconds_sum"] >= 0, stage
    assert gained["request_inference_time_seconds_count"] == 2, "by prefill and by decode"


def totals(workers: list[Process]) -> dict[str, float]:
    """What the workers show, summed; names without the prefix."""
    found: dict[str, float] = {}
    for worker in workers:
        with urllib.request.urlopen(f"{worker.url}/metrics", timeout=10) as response:
            families = text_string_to_metric_families(response.read().decode())
        for sample in (sample for family in families for sample in family.samples):
            name = sample.name.removeprefix("triptych:")
            found[name] = found.get(name, 0.0) + sample.value
    return found
