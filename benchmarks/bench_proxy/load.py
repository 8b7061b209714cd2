"""An HTTP load generator on one core: each connection has one request at a time, as many as are
answered or at a fixed rate."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

FRESH = b"fresh0123456789+"  # where it stands in a body, every request has something else
_LAST = b"0\r\n\r\n"


@dataclass
class Load:
    """What was measured: seconds per request, requests that failed, gaps between a stream's pieces,
    and the whole time."""

    latencies: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    failed: int = 0
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        return len(self.latencies)

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Client(asyncio.Protocol):
    """A client with one connection, which sends its requests in turn until `until` (s of
    `time.perf_counter`). It writes a new number between the pieces of `request` each time. Each
    request is due `every_s` seconds after the one before; the client sends it late if the answer to
    that one has not ended."""

    def __init__(
        self,
        request: Sequence[bytes],
        numbers: Iterator[int],
        until: float,
        load: Load,
        done: asyncio.Event,
        every_s: float = 0.0,
    ) -> None:
        self._numbers = numbers
        self._every_s = every_s
        self._due = time.perf_counter()
        self._request, self._until, self._load, self._done = request, until, load, done
        self._start = self._last = 0.0
        self._missing: int | None = None
        self._seen = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._start = self._last = time.perf_counter()
        if self._start >= self._until:
            self._finish()
            return
        self._seen, self._missing = b"", None
        first, *others = self._request
        pieces = [first]
        for piece in others:
            pieces += (b"%016d" % next(self._numbers), piece)
        self._transport.writelines(pieces)

    def data_received(self, data: bytes) -> None:
        if self._missing is not None:
            self._missing -= len(data)
            if self._missing <= 0:
                self._one(True)
        elif not self._seen.endswith(b"!"):
            self._head(data)
        else:
            now = time.perf_counter()
            self._load.gaps.append(now - self._last)
            self._last = now
            tail = (self._seen[:-1] + data)[-len(_LAST) :]
            if tail == _LAST:
                self._one(True)
            else:
                self._seen = tail + b"!"

    def _head(self, data: bytes) -> None:
        self._seen += data
        head, found, rest = self._seen.partition(b"\r\n\r\n")
        if not found:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self._one(False)
            self._transport.close()
            return
        length = head.lower().partition(b"content-length:")[2]
        if length:
            self._missing = int(length.partition(b"\r\n")[0]) - len(rest)
            if self._missing <= 0:
                self._one(True)
        elif rest.endswith(_LAST):
            self._one(True)
        else:
            self._seen = rest[-len(_LAST) :] + b"!"

    def _one(self, good: bool) -> None:
        if good:
            now = time.perf_counter()
            self._load.latencies.append(now - self._start)
            self._due += self._every_s
            if self._every_s and self._due > now:
                asyncio.get_running_loop().call_later(self._due - now, self._send)
            else:
                self._send()
        else:
            self._load.failed += 1

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.is_set():
            self._load.failed += 1
        self._done.set()

    def _finish(self) -> None:
        self._done.set()
        self._transport.close()


def post(host: str, body: bytes) -> bytes:
    """A chat request as bytes."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nuser-agent: bench\r\n"
        f"content-type: application/json\r\nauthorization: Bearer key\r\naccept: */*\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def run(port: int, body: bytes, connections: int, seconds: float, rate: float = 0.0) -> Load:
    """Load one port of loopback for so many seconds; requests under way then are finished. `rate`:
    requests/s of all connections together, 0 for as many as are answered."""
    loop = asyncio.get_running_loop()
    load, start = Load(), time.perf_counter()
    request = post(f"127.0.0.1:{port}", body).split(FRESH)
    numbers = itertools.count(time.time_ns() % 10**12 * 1000)
    ends = [asyncio.Event() for _ in range(connections)]
    every_s = connections / rate if rate else 0.0
    for end in ends:
        if rate:
            await asyncio.sleep(1 / rate)  # else all would send at the same moments
        await loop.create_connection(
            functools.partial(_Client, request, numbers, start + seconds, load, end, every_s),
            "127.0.0.1",
            port,
        )
    async with asyncio.timeout(seconds + 60):
        await asyncio.gather(*(end.wait() for end in ends))
    load.seconds = time.perf_counter() - start
    return load
