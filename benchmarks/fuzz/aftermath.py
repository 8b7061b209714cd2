"""What a stack looks like after an attack: alive, as large as before, its books clean."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fuzz.chat_samples import TOKENS
from benchmarks.fuzz.servers import ask
from benchmarks.soak.books import private_bytes
from benchmarks.soak.stack import MODEL, Service

_SETTLE_S = 60.0  # six leases, as the soak waits
_BUSY = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
         "num_items_encoding")  # fmt: skip
_QUESTIONS = ("Hello", "What is the capital of France?")


@dataclass(frozen=True)
class Size:
    """Of one service with its engine: private bytes, descriptors and threads; of its HTTP process
    alone, the tasks of its event loop."""

    memory: int
    files: int
    threads: int
    tasks: int


def size(one: Service) -> Size:
    pids = one.pids()
    status, report = ask(one, "GET", "/integrity")
    if status != 200:
        raise RuntimeError(f"{one.name} does not say what it holds: {report}")
    return Size(
        sum(map(private_bytes, pids)),
        sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
        sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids),
        report["process"]["tasks"],
    )


def answers(proxies: Sequence[Service]) -> list[Any]:
    """What ordinary requests are answered with; the status where they fail."""
    found = []
    for one in proxies:
        for question in _QUESTIONS:
            body = {
                "model": MODEL, "messages": [{"role": "user", "content": question}],
                "max_tokens": 4 * TOKENS, "temperature": 0,
            }  # fmt: skip
            status, answer = ask(one, "POST", "/v1/chat/completions", body)
            whole = status == 200
            found.append(answer["choices"][0]["message"]["content"] if whole else (status, answer))
    return found


def forget_strangers(services: Sequence[Service], workers: Sequence[Service]) -> None:
    """Take out the workers that the attack has added by hand."""
    ours = {one.url for one in workers}
    for one in services:
        status, listed = ask(one, "GET", "/instances")
        for entry in listed["instances"] if status == 200 else ():
            if entry["url"] not in ours:
                ask(one, "DELETE", "/instances", {"role": entry["role"], "url": entry["url"]})


def settled(workers: Sequence[Service]) -> list[str]:
    """Problems of the workers' books once nothing is under way, and what does not end."""
    for one in workers:
        for path in ("/reset_prefix_cache", "/reset_encoder_cache"):
            ask(one, "POST", path)
    deadline = time.monotonic() + _SETTLE_S
    while True:
        found = [problem for one in workers for problem in _problems(one)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.25)


def _problems(one: Service) -> list[str]:
    _, report = ask(one, "GET", "/integrity")
    gauges = report["gauges"]
    found = [f"{one.name}: {problem}" for problem in report["problems"]]
    found += [f"{one.name}: {name} {gauges[name]}" for name in _BUSY if gauges.get(name)]
    for transfer in report.get("transfers", ()):
        if transfer["bytes_held"]:
            found.append(f"{one.name} {transfer['connector']}: bytes are held")
    return found
