"""Mock worker processes for tests, and what is said to them."""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.stack import Process, Stack, call

CHAT, GENERATE = "/v1/chat/completions", "/inference/v1/generate"
FAST = ("--speed", "20", "--log-level", "warning", "--shutdown-timeout", "0")
JSON = {"content-type": "application/json"}
HAND_OVER = {"do_remote_decode": True, "do_remote_prefill": False}


def mock(stack: Stack, role: str, *flags: str) -> Process:
    process = stack.start("services.mock", "--role", role, *FAST, *flags)
    process.wait_ready()
    return process


def counters(process: Process) -> dict[str, float]:
    found: dict[str, float] = call(f"{process.url}/integrity")[1]["counters"]
    return found


class Stream:
    """A streamed request that can be left at any moment."""

    def __init__(self, url: str, path: str, body: Any, timeout_s: float = 20.0) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
        self.connection.request("POST", path, json.dumps(body), JSON)
        self.response = self.connection.getresponse()

    def events(self) -> Iterator[bytes]:
        """The data of every event until the stream ends."""
        while line := self.response.readline():
            if line.startswith(b"data: "):
                yield line[6:].rstrip(b"\n")

    def leave(self) -> None:
        self.response.close()
        self.connection.close()


def generate_body(prompt: list[int], most: int = 8, **more: Any) -> dict[str, Any]:
    sampling = {"max_tokens": most, "temperature": 0}
    return {"token_ids": prompt, "sampling_params": sampling, **more}


def ask(process: Process, path: str, body: Any) -> Any:
    status, answer = call(process.url + path, body)
    assert status == 200, answer
    return answer


class _Master(BaseHTTPRequestHandler):
    """Remembers what it is told; knows no worker at the first heartbeat."""

    said: list[tuple[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        beats = sum(path == "/heartbeat" for path, _ in self.said)
        self.said.append((self.path, body))
        answer = json.dumps({"known": self.path != "/heartbeat" or beats > 0}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def listening_master() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """(its URL, what it is told: path and body)"""
    said: list[tuple[str, Any]] = []
    handler = type("Handler", (_Master,), {"said": said})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", said
        server.shutdown()
