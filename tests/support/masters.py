"""The real master process for tests: start it, speak to it, publish cache events to it."""

import json
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import zmq

from protocol.event_frames import SNAPSHOT, end_frames, event_frames, parse_replay_request
from protocol.kv_events import AllBlocksCleared, BlockHash, BlockStored, CacheEvent, encode_batch
from tests.support import waiting
from tests.support.stack import Process, call

WAIT_S = 30.0
until = partial(waiting.until, bound_s=WAIT_S)
KEYS: list[BlockHash] = [*range(10)]


class Publisher:
    """Events as a worker publishes them; `encoding` of the payload. Of what was sent the last
    `keep` messages are replayed."""

    def __init__(
        self, encoding: Any = "map", snapshots: bool = False, keep: int = 1_000_000
    ) -> None:
        self._keep = keep
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self._pub.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.LINGER, 0)
        ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (self._pub, self._router)]
        self.source = {
            "endpoint": f"tcp://127.0.0.1:{ports[0]}",
            "replay": f"tcp://127.0.0.1:{ports[1]}",
        }
        self._encoding = encoding
        self._snapshots = snapshots
        self.sent: list[list[bytes]] = []
        self.stored: list[int] = []
        self.questions: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def publish(self, *events: CacheEvent, lose: bool = False) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self.stored += [int(key) for key in event.block_hashes]
        payload = encode_batch(time.time(), events, encoding=self._encoding)
        self.sent.append(event_frames("kv-events", len(self.sent), payload))
        if not lose:
            self._pub.send_multipart(self.sent[-1])

    def resend(self, *numbers: int) -> None:
        """These messages once more, in this order."""
        for number in numbers:
            self._pub.send_multipart(self.sent[number])

    def garbage(self) -> None:
        self._pub.send_multipart([b"kv-events", b"not a number", b"\xc1"])

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self._router.poll(20):
                continue
            address, first = parse_replay_request(self._router.recv_multipart())
            self.questions.append(first)
            for frames in [*self._answers(first), end_frames()]:
                self._router.send_multipart([address, b"", *frames])

    def _answers(self, first: int) -> list[list[bytes]]:
        if first != SNAPSHOT:
            return self.sent[max(first, len(self.sent) - self._keep) :]
        if not (self._snapshots and self.sent):
            return []
        events = [AllBlocksCleared(), BlockStored(list(self.stored))]
        return [event_frames("", len(self.sent) - 1, encode_batch(time.time(), events))]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(0)


def register(master: Process, name: str, role: str, **fields: Any) -> tuple[int, Any]:
    body = {"instance_id": name, "role": role, "url": f"http://{name}:1", "model": "m", **fields}
    return call(f"{master.url}/register", body)


def schedule(master: Process, name: str = "r", **fields: Any) -> Any:
    body = {"request_id": name, "prompt_tokens": 165, "block_keys": KEYS, **fields}
    status, answer = call(f"{master.url}/schedule", body)
    assert status == 200, answer
    return answer


def workers(master: Process) -> dict[str, Any]:
    """By instance id, as `GET /workers` shows them."""
    status, answer = call(f"{master.url}/workers")
    assert status == 200 and answer["full"], answer
    return {worker["info"]["instance_id"]: worker for worker in answer.get("workers", [])}


def blocks_of(master: Process, name: str) -> int:
    shown = workers(master).get(name, {})
    return int(shown.get("indexed_blocks", 0))


def metric(master: Process, line: str) -> float:
    with urllib.request.urlopen(f"{master.url}/metrics", timeout=WAIT_S) as response:
        text = response.read().decode()
    found = [row for row in text.splitlines() if row.startswith(f"triptych_master:{line} ")]
    return float(found[0].split()[-1]) if found else 0.0


class FakeVLLM:
    """/health and /v1/models of a worker that cannot register; `healthy` can be switched off."""

    def __init__(self) -> None:
        self.healthy = True
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if fake.healthy else 503)
                self.end_headers()
                self.wfile.write(b'{"data": [{"id": "m"}]}')

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def instances(
    master: Process, method: str, body: Any = None, key: str = "secret"
) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{master.url}/instances",
        None if body is None else json.dumps(body).encode(),
        {"x-api-key": key},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
