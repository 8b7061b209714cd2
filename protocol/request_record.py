"""What is known of one request while it is served: for its log line and for `Server-Timing`."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from protocol.types import MMItem

_SERVED = 400  # a status from here on is no success
_LONGEST = 128  # characters that a client chooses


class Call:
    """Work of one request in progress: a call to a `worker`, or a wait. `end` 0.0 while it lasts;
    times are seconds of `time.monotonic`."""

    __slots__ = ("end", "stage", "start", "worker")

    def __init__(self, stage: str, start: float, worker: str) -> None:
        self.stage, self.start, self.worker = stage, start, worker
        self.end = 0.0


class RequestRecord:
    """What a server notes of one request. Times are seconds of `time.monotonic`.

    `outcome`: the code of the error that ended the request, "" if none did; a stream that breaks
    has status 200 and an outcome. `first_at`: when the first output came, 0.0 before.
    `media`: pictures and other media items. Token counts are -1 as long as they are not known.

    `tail`: the end of a relayed answer, a stream's last two pieces or a body's last few kilobytes:
    it tells of tokens. `ended_at`: when nothing more was to come, 0.0 before.

    `items`: media items of a rendered prompt, each with its place there. `embedded`: how many of
    them an encoder had encoded before. `explained`: whether the master is asked for the reasons of
    each placement, which `reasons` then has, newest last.

    `charged`: ways of failing, and the workers that were charged with them (`proxy.dispatch`).
    `kept`: whether the log, the page or an answer shows the record; the relay notes nothing in
    others. `shown`: whether the page does.
    Stages are summed when the log line is made, as every relayed request has a record. Class
    attributes are the values of what is not known.
    """

    model = outcome = ""
    tail: tuple[bytes, bytes] = (b"", b"")
    ended_at = 0.0
    streamed = False
    first_at = 0.0
    status = media = retries = bytes_in = bytes_out = embedded = 0
    items: Sequence[MMItem] = ()
    explained = shown = False
    reasons: tuple[dict[str, Any], ...] = ()
    prompt_tokens = cached_tokens = completion_tokens = -1
    trace: Any = None  # what the process's tracer notes of the request, if it is traced
    _used: tuple[tuple[str, str], ...] = ()
    # `traceparent` and `tracestate` that calls for the request bring: this process's span if it
    # traces the request, else the client's.
    trace_headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, path: str = "", request_id: str = "", *, kept: bool = True) -> None:
        self.kept = kept
        self.start = time.monotonic()
        self.path, self.request_id = path, request_id
        self.calls: list[Call] = []
        self.charged: set[tuple[str, Any]] = set()

    def begin(self, stage: str, now: float, worker: str = "") -> Call:
        """A call of `stage` begins, at the URL `worker` ("" for none). The caller sets `end`."""
        call = Call(stage, now, worker)
        self.calls.append(call)
        return call

    @contextlib.contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """A stage from here to the end of the context."""
        call = self.begin(stage, time.monotonic())
        try:
            yield
        finally:
            call.end = time.monotonic()

    def used(self, stage: str, worker: str) -> None:
        """`worker` has done some of the stage's work, which it may have begun for another."""
        if worker:
            self._used = (*self._used, (stage, worker))

    @property
    def _plain(self) -> bool:
        """Whether each stage was one call's, as in nearly all requests."""
        calls = self.calls
        if self._used:
            return False
        if len(calls) == 2:  # a relayed text's: nearly all
            return calls[0].stage != calls[1].stage
        return len({call.stage for call in calls}) == len(calls)

    def workers(self, stage: str) -> list[str]:
        """Those that worked on a stage, in the order of their calls."""
        called = [call.worker for call in self.calls if call.stage == stage and call.worker]
        used = [worker for name, worker in self._used if name == stage]
        return list(dict.fromkeys(called + used))

    def stages_ms(self, now: float) -> dict[str, float]:
        """Milliseconds that each stage has had work in progress, up to `now`. Calls that overlap,
        as those for several pictures do, count once; further attempts add up."""
        total: dict[str, float] = {}
        until: dict[str, float] = {}
        for call in self.calls:
            stage, end = call.stage, call.end or now
            start = max(call.start, until.get(stage, 0.0))
            total[stage] = total.get(stage, 0.0) + max(0.0, end - start) * 1e3
            until[stage] = max(end, until.get(stage, 0.0))
        return total

    def add_stage_seconds(self, to: defaultdict[str, list[float]], now: float) -> None:
        """Add to each stage's list the seconds that it has had work in progress, up to `now`."""
        if self._plain:
            for call in self.calls:
                to[call.stage].append((call.end or now) - call.start)
        else:
            for stage, ms in self.stages_ms(now).items():
                to[stage].append(ms / 1e3)

    def first_output(self, now: float) -> None:
        if not self.first_at:
            self.first_at = now

    def server_timing(self) -> bytes:
        """Value of the header `Server-Timing` (https://www.w3.org/TR/server-timing/): what is known
        when an answer begins."""
        now, calls = time.monotonic(), self.calls
        total = (now - self.start) * 1e3
        if len(calls) == 2 and self._plain:  # as most are: numbers are formatted at once
            one, two = calls
            return b"%b;dur=%.2f, %b;dur=%.2f, total;dur=%.2f" % (
                one.stage.encode(), ((one.end or now) - one.start) * 1e3,
                two.stage.encode(), ((two.end or now) - two.start) * 1e3, total,
            )  # fmt: skip
        said = "".join(f"{stage};dur={ms:.2f}, " for stage, ms in self.stages_ms(now).items())
        return f"{said}total;dur={total:.2f}".encode()

    def result(self) -> str:
        """How the request ended, in one word."""
        if self.outcome:
            return self.outcome
        if not self.status:
            return "aborted"
        return "ok" if self.status < _SERVED else "refused"

    def fields(self) -> dict[str, object]:
        """The parts of the request's log line; what is not known is left out. What the client has
        chosen is cut."""
        now = self.ended_at or time.monotonic()
        line: dict[str, object] = {
            "id": self.request_id[:_LONGEST], "path": self.path, "model": self.model[:_LONGEST],
            "status": self.status, "outcome": self.result(), "stream": self.streamed,
            "media": self.media, "ms": _ms(now - self.start), "retries": self.retries,
            "bytes_in": self.bytes_in, "bytes_out": self.bytes_out,
        }  # fmt: skip
        if self.first_at:
            line["ttft_ms"] = _ms(self.first_at - self.start)
        if self.prompt_tokens >= 0:
            line["prompt_tokens"] = self.prompt_tokens
        if self.cached_tokens >= 0:
            line["cached_tokens"] = self.cached_tokens
        if self.completion_tokens >= 0:
            line["completion_tokens"] = self.completion_tokens
        if self._plain:
            for call in self.calls:
                line[call.stage + "_ms"] = int(((call.end or now) - call.start) * 1e5) / 100
                if call.worker:
                    line[call.stage + "_worker"] = call.worker
        else:
            self._stages(line, now)
        return line

    def _stages(self, line: dict[str, object], now: float) -> None:
        for stage, ms in self.stages_ms(now).items():
            line[f"{stage}_ms"] = round(ms, 2)
            if workers := self.workers(stage):
                line[f"{stage}_worker"] = ",".join(workers)


def _ms(seconds: float) -> float:
    """Milliseconds to two decimals (`round` takes three times as long)."""
    return int(seconds * 1e5 + 0.5) / 100


def traced(headers: dict[str, str], record: RequestRecord) -> dict[str, str]:
    """Of a call for the request: with its trace, if it has one."""
    return {**headers, **record.trace_headers} if record.trace_headers else headers
