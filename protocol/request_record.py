"""What is known of one request while it is served: for its log line and for `Server-Timing`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_SERVED = 400  # a status from here on is no success


class Stage:
    """How long a stage has had work of one request in progress. Calls that overlap, as those for
    several pictures do, count once; further attempts add up."""

    __slots__ = ("_calls", "_s", "_since", "workers")

    def __init__(self) -> None:
        self._calls = 0
        self._since = self._s = 0.0
        self.workers: list[str] = []

    def begin(self, now: float) -> None:
        if not self._calls:
            self._since = now
        self._calls += 1

    def end(self, now: float) -> None:
        self._calls -= 1
        if not self._calls:
            self._s += now - self._since

    def ms(self, now: float) -> float:
        """Milliseconds up to `now`, with what is still in progress."""
        running_s = now - self._since if self._calls else 0.0
        return (self._s + running_s) * 1e3


class RequestRecord:
    """Filled in by whoever serves the request. Times are seconds of `time.monotonic`.

    `outcome`: the code of the error that ended the request, "" if none did; a stream that breaks
    has status 200 and an outcome. `first_at`: when the first output came, 0.0 before.
    `media`: pictures and other media items. Token counts are -1 as long as they are not known.
    """

    __slots__ = (
        "bytes_in", "bytes_out", "cached_tokens", "completion_tokens", "first_at", "media",
        "model", "outcome", "path", "prompt_tokens", "request_id", "retries", "stages", "start",
        "status", "streamed",
    )  # fmt: skip

    def __init__(self, path: str = "", request_id: str = "") -> None:
        self.start = time.monotonic()
        self.path, self.request_id = path, request_id
        self.model = self.outcome = ""
        self.streamed = False
        self.first_at = 0.0
        self.status = self.media = self.retries = self.bytes_in = self.bytes_out = 0
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = -1
        self.stages: dict[str, Stage] = {}

    def begin(self, stage: str, now: float, worker: str = "") -> None:
        """Work for `stage` begins, at `worker` if it is one's."""
        found = self.stages.get(stage)
        if found is None:
            found = self.stages[stage] = Stage()
        found.begin(now)
        if worker and worker not in found.workers:
            found.workers.append(worker)

    def end(self, stage: str, now: float) -> None:
        """The work that has begun last is over."""
        self.stages[stage].end(now)

    @contextlib.contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """`begin` and `end`."""
        self.begin(stage, time.monotonic())
        try:
            yield
        finally:
            self.end(stage, time.monotonic())

    def used(self, stage: str, worker: str) -> None:
        """`worker` has done some of the stage's work, which it may have begun for another."""
        found = self.stages.get(stage)
        if worker and found is not None and worker not in found.workers:
            found.workers.append(worker)

    def first_output(self, now: float) -> None:
        if not self.first_at:
            self.first_at = now

    def server_timing(self) -> bytes:
        """Value of the header `Server-Timing` (https://www.w3.org/TR/server-timing/): what is known
        when an answer begins."""
        now = time.monotonic()
        parts = [f"{name};dur={stage.ms(now):.2f}" for name, stage in self.stages.items()]
        parts.append(f"total;dur={(now - self.start) * 1e3:.2f}")
        return ", ".join(parts).encode()

    def result(self) -> str:
        """How the request ended, in one word."""
        if self.outcome:
            return self.outcome
        if not self.status:
            return "aborted"
        return "ok" if self.status < _SERVED else "refused"

    def fields(self) -> dict[str, object]:
        """The parts of the request's log line; what is not known is left out."""
        now = time.monotonic()
        line: dict[str, object] = {
            "id": self.request_id, "path": self.path, "model": self.model, "status": self.status,
            "outcome": self.result(), "stream": self.streamed, "media": self.media,
            "ms": round((now - self.start) * 1e3, 2),
        }  # fmt: skip
        if self.first_at:
            line["ttft_ms"] = round((self.first_at - self.start) * 1e3, 2)
        for name, stage in self.stages.items():
            line[f"{name}_ms"] = round(stage.ms(now), 2)
            if stage.workers:
                line[f"{name}_worker"] = ",".join(stage.workers)
        if self.prompt_tokens >= 0:
            line["prompt_tokens"] = self.prompt_tokens
        if self.cached_tokens >= 0:
            line["cached_tokens"] = self.cached_tokens
        if self.completion_tokens >= 0:
            line["completion_tokens"] = self.completion_tokens
        return line | {
            "retries": self.retries, "bytes_in": self.bytes_in, "bytes_out": self.bytes_out
        }  # fmt: skip
