"""A fleet with a key and workers of other engines in it, which have none."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from protocol.errors import TriptychError
from protocol.fleet_key import HEADER, FleetKey
from protocol.kv_events import BlockStored
from proxy.upstream.client import UpstreamClient
from services.master.probing.client import ProbeClient
from tests.support.masters import FakeVLLM, Publisher, instances, metric, until
from tests.support.stack import Process

KEY = FleetKey("the-secret-of-this-fleet")


def test_their_events_are_read_in_the_clear() -> None:
    flags = ("--admin-api-key", "secret", "--probe-interval", "0.05", "--fleet-key", KEY.secret)
    master = Process("services.master", *flags, env={})
    master.wait_ready()
    worker, publisher = FakeVLLM(), Publisher("array")
    body = {"role": "decode", "url": worker.url, "revision": "r", "events": [publisher.source]}
    assert instances(master, "POST", body)[0] == 200
    until(lambda: "True" in str(instances(master, "GET")[1]["instances"]))
    publisher.publish(BlockStored([901, 902], None, list(range(32)), 16))
    until(lambda: metric(master, 'index_entries{kind="blocks",model="m"}') == 2)
    worker.close()
    publisher.close()
    assert master.stop() == 0


class Redirecting:
    """Sends every client on to itself under /elsewhere; `asked` has what came there."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.keys.append((self.path, self.headers.get(HEADER)))
                self.send_response(302 if self.path != "/elsewhere" else 200)
                self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Redirecting]:
    found = Redirecting()
    yield found
    found.close()


async def test_no_client_follows_a_redirect_with_the_key(server: Redirecting) -> None:
    client = UpstreamClient(2.0, key=KEY)
    for call in (client.get(f"{server.url}/a"), client.post(f"{server.url}/b", b"{}", {})):
        with pytest.raises(TriptychError):
            await call
    await client.close()
    async with ProbeClient(2.0, KEY) as probing:
        with pytest.raises(TriptychError):
            await probing.health(server.url, suspect=False)
    assert server.keys == [("/a", KEY.secret), ("/b", KEY.secret), ("/health", KEY.secret)]
