"""What chaos does to answers, and which failures it excuses."""

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.chaos.acts import Act
from benchmarks.chaos.report import excused
from benchmarks.soak.interposer import MODES, Interposer
from benchmarks.soak.load import Outcome
from protocol.generate import INSTANCE_HEADER


class Worker(BaseHTTPRequestHandler):
    """Answers with the body that it is sent."""

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["content-length"])))

    def do_GET(self) -> None:
        self._answer(b"well")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header(INSTANCE_HEADER, "me")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def before() -> Iterator[Interposer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Worker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = Interposer(server.server_address[1])
        yield made
        made.close()
        server.shutdown()


def call(one: Interposer, method: str, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=timeout_s)
    try:
        connection.request(method, path, b"work" if method == "POST" else None)
        response = connection.getresponse()
        named = response.getheader(INSTANCE_HEADER)
        assert named == (None if response.status == 404 else "me")
        return response.status, response.read()
    finally:
        connection.close()


def test_only_work_is_answered_in_the_workers_place(before: Interposer) -> None:
    work = "/inference/v1/generate"
    assert call(before, "POST", work) == (200, b"work")
    for mode in MODES:
        before.mode = mode
        assert call(before, "GET", "/health") == (200, b"well")
        if mode == "nothing":
            with pytest.raises(TimeoutError):
                call(before, "POST", work, 0.1)
        else:
            status, body = call(before, "POST", work)
            wanted = int(mode[:3]) if mode[:3].isdigit() else 200
            assert body != b"work" and status == wanted
    assert before.spoiled == len(MODES)
    before.mode = ""
    assert call(before, "POST", work) == (200, b"work")


@pytest.mark.parametrize(
    ("what", "began", "ended", "excusable"),
    [
        ("terminate proxy-1", 9.0, 15.0, False),
        ("terminate proxy-1", 10.5, 15.0, False),
        ("terminate proxy-1", 11.5, 11.6, True),
        ("terminate proxy-1", 20.5, 21.0, False),
        ("kill proxy-1", 9.0, 10.5, True),
        ("kill proxy-1", 8.0, 9.0, False),
        ("kill master", 11.5, 11.6, False),
    ],
)
def test_a_stream_that_its_proxy_had_begun_is_not_excused(
    what: str, began: float, ended: float, excusable: bool
) -> None:
    act = Act(what, 10.0, 20.0)
    assert excused(Outcome(1, "text", began, ended, "failed"), act) is excusable
