"""A client that places requests itself, as a proxy does: any master, any worker it names."""

import http.client
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from protocol.keys import block_keys, root_key
from protocol.kv_events import short_key
from tests.support.stack import Process, call

PATIENCE_S = 180.0
PAUSE_S = 0.02
BLOCK, PREFIX, TAIL = 16, 64, 24
GENERATE = "/inference/v1/generate"
MODEL, REVISION = "mock", "1"


@dataclass
class Clients:
    """Threads that place requests and run them on the workers named."""

    masters: list[Process]
    failed: list[str] = field(default_factory=list)
    done: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "Clients":
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(3)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def some_more(self, count: int) -> None:
        """Wait until so many requests more have been answered."""
        target = self.done + count
        deadline = time.monotonic() + PATIENCE_S
        while self.done < target:
            assert time.monotonic() < deadline, self.failed
            time.sleep(0.01)

    def _run(self, number: int) -> None:
        rng, count = random.Random(number), 0
        while not self._stop.wait(PAUSE_S):
            count += 1
            prefix = [rng.randrange(5)] * PREFIX
            tokens = prefix + [rng.randrange(1000) for _ in range(TAIL)]
            outcome = self._ask(f"{number}-{count}", tokens)
            with self._lock:
                self.done += outcome is None
                self.failed += [] if outcome is None else [outcome]

    def _ask(self, name: str, tokens: list[int]) -> str | None:
        """None, or why the request failed for good."""
        avoid: list[str] = []
        problem: str = "no worker could be asked"
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            placed = self._place(name, tokens, avoid)
            if placed is None:
                self._stop.wait(0.02)
                continue
            target = placed["decode"]
            sampling = {"max_tokens": 4, "temperature": 0}
            body = {"request_id": name, "token_ids": tokens, "sampling_params": sampling}
            status, problem = attempt(target["url"] + GENERATE, body, 2.0)
            failed = [] if status == 200 else [target["instance_id"]]
            self._tell("/finished", {"reports": [{"request_id": name, "failed": failed}]})
            if not failed:
                return None
            avoid = failed
        return problem

    def _place(self, name: str, tokens: list[int], avoid: list[str]) -> Any:
        root = root_key(model=MODEL, revision=REVISION)
        keys = [short_key(key) for key in block_keys(tokens, BLOCK, root)]
        return self._tell("/schedule", {
            "request_id": name, "prompt_tokens": len(tokens), "block_keys": keys, "model": MODEL,
            "max_tokens": 4, "avoid": avoid,
        })  # fmt: skip

    def _tell(self, path: str, body: Any) -> Any:
        """The answer of the first master that has one."""
        for master in random.sample(self.masters, len(self.masters)):
            status, answer = attempt(master.url + path, body, 5.0)
            if status == 200:
                return answer
        return None


def attempt(url: str, body: Any, timeout_s: float) -> tuple[int, Any]:
    """As `call`; status 0 and a word on it if there is no answer."""
    try:
        return call(url, body, timeout_s)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, f"{url}: {error!r}"
