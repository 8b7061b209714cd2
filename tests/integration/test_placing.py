"""The proxy before mock workers that only a master knows: placed by it, going on without it."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support import waiting
from tests.support.clients import body_of, complete, tokens
from tests.support.conversations import asking, picture
from tests.support.stack import Process, Stack, call, idle, metric, running

PATIENT_S = 20.0
until = partial(waiting.until, bound_s=PATIENT_S)


@dataclass
class Fleet:
    stack: Stack
    masters: list[Process]
    workers: dict[str, list[Process]]
    proxy: Process

    def counter(self, role: str, name: str) -> list[float]:
        return [call(f"{w.url}/integrity")[1]["counters"][name] for w in self.workers[role]]

    def known(self, name: str, least: int) -> bool:
        """Whether both masters know of a worker that holds so many."""
        views = [call(f"{master.url}/workers")[1]["workers"] for master in self.masters]
        return all(max(view.get(name, 0) for view in some) >= least for some in views)


def workers_up(process: Process) -> int:
    body = call(f"{process.url}/health")[1]
    return sum(
        state == "up" for role in ("encode", "prefill", "decode") for state in body[role].values()
    )


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir) -> Iterator[Fleet]:
    with running(model_dir("qwen2_5_vl")) as stack:
        masters = [master(stack) for _ in range(2)]
        url = ",".join(process.wait_ready() for process in masters)
        workers = {role: [mock(stack, role, url) for _ in range(2)]
                   for role in ("encode", "prefill", "decode")}  # fmt: skip
        server = stack.start("proxy", "--master-url", url, "--probe-interval", "0.2")
        server.wait_ready()
        for worker in chain(*workers.values()):
            worker.wait_ready()
        until(lambda: workers_up(server) == 6)
        yield Fleet(stack, masters, workers, server)
        for worker in chain(*workers.values()):
            idle(worker)


def master(stack: Stack) -> Process:
    return stack.start_plain("services.master", "--lease", "3")


def mock(stack: Stack, role: str, master_url: str, speed: str = "20") -> Process:
    return stack.start(
        "services.mock", "--role", role, "--speed", speed, "--master-url", master_url,
        "--heartbeat-interval", "0.3", "--log-level", "warning",
    )  # fmt: skip


def test_a_repeated_picture_and_prefix_meet_their_caches(fleet: Fleet) -> None:
    """Each is computed once in the fleet, on any worker."""
    encoded = sum(fleet.counter("encode", "mm_encoded"))
    case = asking(picture(901), "What is in this image? " * 8)
    answers = []
    for _ in range(6):
        answers.append(complete(fleet.proxy, case, max_tokens=8))
        blocks = answers[0]["usage"]["prompt_tokens"] // 16
        until(lambda blocks=blocks: fleet.known("indexed_blocks", blocks - 1))  # by events
        until(lambda: fleet.known("indexed_media", 1))
    assert len({tuple(answer["choices"][0]["token_ids"]) for answer in answers}) == 1
    assert sum(fleet.counter("encode", "mm_encoded")) == encoded + 1
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
    size = answers[0]["usage"]["prompt_tokens"]
    assert cached[0] == 0 and all(size - 32 <= hit < size for hit in cached[1:])
    assert metric(fleet.proxy, 'proxy:placements_total{by="master"}') >= 6


def test_a_draining_worker_gets_nothing_more(fleet: Fleet) -> None:
    one, _ = fleet.workers["decode"]
    assert call(f"{one.url}/drain", {})[0] == 200
    until(lambda: not call(f"{one.url}/load")[1]["server_load"])
    time.sleep(0.5)
    before = fleet.counter("decode", "generation_tokens")
    for number in range(6):
        tokens(fleet.proxy, asking(f"drained {number}"), max_tokens=4)
    after = fleet.counter("decode", "generation_tokens")
    assert after[0] == before[0] and after[1] > before[1]
    one.kill()
    one.restart()
    until(lambda: workers_up(fleet.proxy) == 6)


def test_it_goes_on_without_any_master_and_with_the_next(fleet: Fleet) -> None:
    """First one dies, then both; no request fails; then they come back and are asked again."""
    cases = [asking(picture(910 + number % 3), f"Question {number}") for number in range(60)]

    def ask(case: Any) -> tuple[int, Any]:
        return call(f"{fleet.proxy.url}/v1/chat/completions", body_of(case, max_tokens=6))

    with ThreadPoolExecutor(6) as pool:
        answers = []
        for at, work in ((0, fleet.masters[0].kill), (20, fleet.masters[1].kill), (40, None)):
            pending = [pool.submit(ask, case) for case in cases[at : at + 20]]
            if work is not None:
                work()
            answers += [one.result() for one in pending]
    wrong = [(at, *answer) for at, answer in enumerate(answers) if answer[0] != 200]
    assert not wrong, wrong
    assert metric(fleet.proxy, 'proxy:placements_total{by="proxy"}') >= 20
    assert metric(fleet.proxy, "proxy:master_present") == 0
    for process in fleet.masters:
        process.restart()
    until(lambda: metric(fleet.proxy, "proxy:master_present") == 1)
    until(lambda: workers_up(fleet.proxy) == 6)
    placed = metric(fleet.proxy, 'proxy:placements_total{by="master"}')

    def placed_by_master() -> bool:
        """Not before the workers have registered with it again."""
        assert tokens(fleet.proxy, cases[0], max_tokens=6)
        return metric(fleet.proxy, 'proxy:placements_total{by="master"}') > placed

    until(placed_by_master)


def test_a_full_fleet_is_refused_by_the_master_at_once(fleet: Fleet) -> None:
    """With Retry-After, in OpenAI's form."""
    with running(fleet.stack.model) as stack:
        full = stack.start_plain("services.master", "--max-queue", "0", "--busy-requests", "1")
        url = full.wait_ready()
        worker = mock(stack, "pdfusion", url, speed="0.5")
        worker.wait_ready()
        server = stack.start("proxy", "--master-url", url, "--max-retries", "0")
        server.wait_ready()
        until(lambda: workers_up(server) == 1)
        body = body_of(asking("long"), max_tokens=3000)
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(call, f"{server.url}/v1/chat/completions", body)
            until(lambda: call(f"{worker.url}/load")[1]["server_load"] == 1)
            request = urllib.request.Request(
                f"{server.url}/v1/chat/completions",
                b'{"model":"tiny","messages":[{"role":"user","content":"x"}]}',
                {"content-type": "application/json"},
            )
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=60)
            assert refused.value.code in (429, 503)
            assert int(refused.value.headers["retry-after"]) >= 1
            assert not long.done(), "it was refused at once, and did not wait for a place"
            worker.kill()
            long.result()


def test_a_worker_that_does_it_all_is_sent_the_pictures_of_its_requests(fleet: Fleet) -> None:
    """Where there is no encoder."""
    with running(fleet.stack.model) as stack:
        url = master(stack).wait_ready()
        worker = mock(stack, "pdfusion", url)
        worker.wait_ready()
        server = stack.start("proxy", "--master-url", url)
        server.wait_ready()
        until(lambda: workers_up(server) == 1)
        assert len(tokens(server, asking(picture(990), "What is this?"), max_tokens=3)) == 3
        assert call(f"{worker.url}/integrity")[1]["counters"]["mm_encoded"] == 1
