"""Workers of vLLM leave the master's list before they are restarted, and come back to it."""

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from triptych.launch.membership import ListedWorkers
from triptych.launch.plan import Service
from triptych.launch.processes import LaunchError

METRICS = """# HELP vllm:num_requests_running Requests
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:num_requests_waiting_by_reason{engine="0",reason="x"} 7.0
"""


@dataclass
class Site:
    """A master and a worker in one: `refusal` answers what changes the list, if there is one."""

    url: str = ""
    refusal: str = ""
    metrics: str = METRICS
    told: list[tuple[str, Any, str | None]] = field(default_factory=list)

    @property
    def worker(self) -> Service:
        return Service("decode-0", (), self.url)

    @property
    def listing(self) -> dict[str, Any]:
        return {"role": "decode", "url": self.url}

    def members(self) -> ListedWorkers:
        return ListedWorkers(self.url, "secret", [self.listing])


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, found.metrics)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.told.append((self.command, body, self.headers["x-api-key"]))
            self._answer(400 if found.refusal else 200, found.refusal or "{}")

        do_DELETE = do_POST

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def test_a_worker_leaves_and_is_listed_again_as_it_was(site: Site) -> None:
    members = site.members()
    assert members.leave(site.worker) == ""
    members.back([site.worker])
    assert site.told == [
        ("DELETE", site.listing, "secret"),
        ("POST", site.listing, "secret"),
    ]


def test_it_has_work_as_long_as_it_has_requests_or_kv_that_others_fetch(site: Site) -> None:
    assert site.members().load(site.worker) == 3.25
    site.metrics = METRICS.replace(" 2.0", " 0.0").replace(" 1.0", " 0.0")
    assert site.members().load(site.worker) == 0.25
    site.metrics = site.metrics.replace(" 0.25", " 0.0")
    assert site.members().load(site.worker) == 0.0


def test_one_that_is_not_listed_may_still_have_work(site: Site) -> None:
    site.refusal = '{"error": {"code": "unknown_instance"}}'
    assert site.members().leave(site.worker) == ""


@pytest.mark.parametrize("refusal", ['{"error": {"code": "invalid_api_key"}}', ""])
def test_none_is_stopped_while_the_master_still_sends_it_requests(refusal: str, site: Site) -> None:
    site.refusal = refusal
    members, worker = site.members(), site.worker
    if not refusal:  # no server listens there
        members = ListedWorkers("http://127.0.0.1:1", "secret", [site.listing])
    with pytest.raises(LaunchError, match="master"):
        members.leave(worker)


def test_a_refused_listing_names_the_worker(site: Site) -> None:
    site.refusal = "{}"
    with pytest.raises(LaunchError, match="decode-0"):
        site.members().back([site.worker])
