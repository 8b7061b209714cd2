"""One stack for all tests of this folder that need no more than that services go on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.fuzz.servers import ADMIN, FLEET, HEADERS
from tests.conftest import ModelDir
from tests.support.clients import all_up
from tests.support.mocks import mock
from tests.support.stack import Process, call, proxy, running
from tests.support.waiting import until

HELLO = {
    "model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4,
    "temperature": 0,
}  # fmt: skip


@dataclass
class Site:
    """`proxies`: one that renders, one that relays, one that asks the master."""

    master: Process
    worker: Process
    double: Process
    proxies: list[Process]

    @property
    def services(self) -> list[Process]:
        return [self.master, self.worker, self.double, *self.proxies]

    def in_use(self) -> list[str]:
        """What each proxy takes its own worker to be."""
        own = (self.worker, self.double, self.worker)
        found = []
        for one, worker in zip(self.proxies, own, strict=True):
            stages = call(f"{one.url}/health")[1]
            found.append(stages["decode"][worker.url])
        return found

    def served(self) -> list[tuple[int, Any]]:
        """(status, text) of an ordinary request at each proxy."""
        found = []
        for one in self.proxies:
            status, answer = call(f"{one.url}/v1/chat/completions", HELLO, headers=HEADERS)
            found.append((status, answer["choices"][0]["message"] if status == 200 else answer))
        return found


@pytest.fixture(scope="package")
def site(model_dir: ModelDir) -> Iterator[Site]:
    key = ("--fleet-key", FLEET.secret, "--max-body-bytes", "4000000")
    renders = ("--media-timeout", "1")
    admin = (*key, "--admin-api-key", ADMIN)
    with running(model_dir("qwen2_5_vl")) as stack:
        master = stack.start_plain("services.master", *admin, "--log-level", "warning")
        joined = ("--master-url", master.wait_ready(), "--heartbeat-interval", "0.2")
        worker = stack.start("services.pdfusion", *key, *joined, *renders)
        worker.wait_ready()
        double = mock(stack, "pdfusion", "--dialect", "openai", *key)
        proxies = [
            proxy(stack, [], [], [worker], *admin, *renders),
            proxy(stack, [], [], [double], *admin, "--dialect", "openai"),
            proxy(stack, [], [], [], *key, *renders, "--master-url", master.url),
        ]
        for one in proxies:
            until(lambda one=one: all_up(one), one.log)
        yield Site(master, worker, double, proxies)
        assert set(stack.stop()) == {0}
