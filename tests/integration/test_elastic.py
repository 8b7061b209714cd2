"""Workers of the role any: moved by hand and by the load while requests run; no request fails."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.conftest import ModelDir
from tests.support import waiting
from tests.support.clients import all_tokens, body_of, tokens
from tests.support.conversations import LONG, asking, picture
from tests.support.masters import workers
from tests.support.reference import Messages, reference_generate
from tests.support.stack import Process, Stack, call, idle, metric, running

KEY = "secret"
CLIENTS = 12
TOKENS = 8
until = partial(waiting.until, bound_s=30.0)
MOVED = ("has just come or gone", "this worker is draining or stopping and accepts no requests")
"""Why a request may be sent again: the proxy, or the worker, has just heard of a move."""


def fleet(stack: Stack, count: int, start: Callable[[str], Process], *flags: str) -> Process:
    """The master of so many workers; a proxy of theirs is the last process."""
    master = stack.start_plain("services.master", "--admin-api-key", KEY, *flags)
    url = master.wait_ready()
    started = [start(url) for _ in range(count)]
    for worker in started:
        worker.wait_ready()
    until(lambda: len(workers(master)) == count)
    stack.start("proxy", "--master-url", url, "--probe-interval", "0.2").wait_ready()
    return master


def roles(master: Process) -> Counter[str]:
    return Counter(one["info"]["role"] for one in workers(master).values())


def move(master: Process, worker: Process, role: str, key: str = KEY) -> tuple[int, Any]:
    body = {"url": worker.url, "role": role}
    return call(f"{master.url}/instances/role", body, headers={"x-api-key": key})


def serves(worker: Process) -> str:
    found: str = call(f"{worker.url}/server_info")[1]["role"]
    return found


def at_proxy(server: Process) -> dict[str, set[str]]:
    """URLs by the list that a proxy has them in."""
    body = call(f"{server.url}/health")[1]
    return {role: set(body[role]) for role in ("encode", "prefill", "decode")}


def cases(seed: int) -> list[Messages]:
    return [
        asking(picture(seed), "What is in this image?"),
        asking("First this,", picture(seed + 1), "then", picture(seed), LONG),
        asking(f"{seed}: {LONG}"),
    ]


def test_real_workers_answer_the_same_before_during_and_after_they_are_moved(
    model_dir: ModelDir,
) -> None:
    """Three that begin as decode workers, and are sent round all roles meanwhile."""
    with running(model_dir("qwen3_vl")) as stack:

        def start(url: str) -> Process:
            return stack.start("services.pdfusion.any", "--master-url", url,
                               "--heartbeat-interval", "0.2")  # fmt: skip

        master = fleet(stack, 3, start, "--no-elastic")
        *_, one, two, three, server = stack.processes
        wanted = {seed: [reference_generate(stack.model, c, TOKENS) for c in cases(seed)]
                  for seed in (1, 3)}  # fmt: skip
        assert all_tokens(server, cases(1), max_tokens=TOKENS) == wanted[1], "all decode"
        assert move(master, one, "encode", "wrong")[0] == 401
        status, refused = move(master, one, "store")
        assert (status, refused["error"]["param"]) == (400, "role")
        for worker, role in ((one, "encode"), (two, "prefill")):
            assert move(master, worker, role)[1]["status"] == "moved"
        until(lambda: at_proxy(server) == {
            "encode": {one.url}, "prefill": {two.url}, "decode": {three.url}
        })  # fmt: skip
        until(lambda: [serves(one), serves(two), serves(three)] == ["encode", "prefill", "decode"])
        assert all_tokens(server, cases(1), max_tokens=TOKENS) == wanted[1], "each has one role"
        over, answers = threading.Event(), list[list[list[int]]]()

        def ask() -> None:
            while not over.is_set():
                answers.append(all_tokens(server, cases(3), max_tokens=TOKENS))

        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask)
            for turn in itertools.permutations(("encode", "prefill", "decode")):
                for worker, role in zip((one, two, three), turn, strict=True):
                    assert move(master, worker, role)[0] == 200
                time.sleep(0.3)
            over.set()
            asked.result()
        assert answers and all(one == wanted[3] for one in answers), "sent round"
        assert metric(master, "master:role_moves_total") > 12
        for worker in (one, two, three):
            idle(worker)

        def retried() -> list[str]:
            return [line for line in server.log if "; trying again" in line]

        until(lambda: len(retried()) == metric(server, "proxy:retries_total"), server.log)
        assert all(any(why in line for why in MOVED) for line in retried()), retried()


@contextmanager
def asking_on(server: Process, body: Callable[[int], Any], threads: int) -> Iterator[list[int]]:
    """Clients that ask one question after the other while this lasts; the statuses that came."""
    statuses: list[int] = []
    over, numbers = threading.Event(), itertools.count()

    def ask() -> None:
        while not over.is_set():
            status, answer = call(f"{server.url}/v1/chat/completions", body(next(numbers)))
            statuses.append(status if answer.get("choices") else 0)

    with ThreadPoolExecutor(threads) as pool:
        asked = [pool.submit(ask) for _ in range(threads)]
        try:
            yield statuses
        finally:
            over.set()
            for one in asked:
                one.result()


def test_mock_workers_follow_the_load_and_stay_where_it_is_steady(model_dir: ModelDir) -> None:
    """First pictures, which keep encode and prefill busy, then long answers."""
    timing = ("--encode-base-ms", "200", "--decode-base-ms", "20", "--max-num-seqs", "4",
              "--heartbeat-interval", "0.2", "--log-level", "warning")  # fmt: skip
    with running(model_dir("qwen2_5_vl")) as stack:

        def start(url: str) -> Process:
            return stack.start("services.mock", "--role", "any", "--master-url", url, *timing)

        pace = ("--elastic-window", "1.5", "--elastic-dwell", "2", "--elastic-gap", "0.5")
        master = fleet(stack, 5, start, *pace)
        server = stack.processes[-1]

        def pictures(number: int) -> Any:
            return body_of(asking(picture(number), "?"), max_tokens=2)

        def words(number: int) -> Any:
            return body_of(asking(f"{number}: {LONG}"), max_tokens=100)

        with asking_on(server, pictures, CLIENTS) as first:
            until(lambda: roles(master)["encode"] > 0)
            settle(master)
            assert roles(master)["decode"] <= 2
        with asking_on(server, words, CLIENTS) as then:
            until(lambda: roles(master)["decode"] >= 3)
            settle(master)
        assert roles(master) == {"encode": 1, "prefill": 1, "decode": 3}
        assert set(first) == set(then) == {200}
        assert min(len(first), len(then)) >= CLIENTS
        assert tokens(server, asking("still there"), max_tokens=3)


def settle(master: Process, seconds: float = 3.0) -> None:
    """Under a steady load there comes a time without moves."""
    moved, since = -1.0, 0.0

    def steady() -> bool:
        nonlocal moved, since
        now = metric(master, "master:role_moves_total")
        if now != moved:
            moved, since = now, time.monotonic()
        return time.monotonic() - since > seconds

    until(steady)
