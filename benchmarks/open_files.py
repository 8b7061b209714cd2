"""More streams at once than the usual limit of open files: all are answered, none is cut off.

    python -m benchmarks.open_files [--quick] [--json FILE] [--streams N]

A proxy before one mock worker, in both dialects, on one machine. The soft limit of open files is
1,024 for both, as a login shell has it. First the hard limit is the machine's, and all streams must
be answered, more than 1,024 of them at the same time; then the hard limit is 1,024 as well, and the
streams must be served in turn, or refused with 503 and Retry-After. There is no peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvloop

from benchmarks.common.processes import ending, free_port, wait_ready
from benchmarks.common.rows import Row, arguments, at_least, at_most, finish, hardware, head, line
from services.http.open_files import raise_limit

SOFT = 1024
MODEL = "models/demo"
TOKENS = 10
_FAST_MS = 100  # per token, where streams are served in turn
_SLOW_MS = 0.8  # per token and stream: most streams have begun before the first one ends
_TIMEOUT_S = 300.0
_CONNECTS_AT_ONCE = 256
_BODY = msgspec.json.encode(
    {
        "model": MODEL, "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "return_token_ids": True,
    }
)  # fmt: skip
_REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(_BODY)
) + _BODY


@dataclass
class Load:
    """Streams under way; `results` counts how they ended, `most` were open at once."""

    results: Counter[str] = field(default_factory=Counter)
    open: int = 0
    most: int = 0


class Stream(asyncio.Protocol):
    """One request on a connection of its own, until the server closes it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._data = bytearray()
        self._begun = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(_REQUEST)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._begun and b"data: {" in self._data:
            self._begun = True
            self._load.open += 1
            self._load.most = max(self._load.most, self._load.open)

    def connection_lost(self, error: Exception | None) -> None:
        self._load.open -= self._begun
        self._load.results[self._result()] += 1
        self.ended.set_result(None)

    def _result(self) -> str:
        top, _, answer = bytes(self._data).partition(b"\r\n\r\n")
        whole = answer.count(b'"token_ids":[') == TOKENS and b"data: [DONE]" in answer
        if top.startswith(b"HTTP/1.1 200 "):
            return "answered" if whole else "cut short"
        if top.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: " in top.lower():
            return "refused"
        return f"failed ({top[9:12].decode() or 'reset'})"


async def streams(url: str, count: int) -> Load:
    """So many at once; connections are made as fast as the kernel takes them."""
    loop, load, room = asyncio.get_running_loop(), Load(), asyncio.Semaphore(_CONNECTS_AT_ONCE)
    host, _, port = urlsplit(url).netloc.rpartition(":")

    async def one() -> None:
        try:
            async with room:
                _, stream = await loop.create_connection(lambda: Stream(load), host, int(port))
        except OSError:
            load.results["not connected"] += 1
            return
        await stream.ended

    async with asyncio.timeout(_TIMEOUT_S):
        await asyncio.gather(*(one() for _ in range(count)))
    return load


@contextlib.contextmanager
def started(files: str, module: str, *flags: str) -> Iterator[str]:
    """The URL of a service that is ready and may open so many `files`, soft:hard."""
    port = free_port()
    command = [sys.executable, "-m", module, "--port", str(port), "--log-level", "warning", *flags]
    process = subprocess.Popen(["prlimit", f"--nofile={files}", *command])
    with ending(process):
        url = f"http://127.0.0.1:{port}"
        wait_ready(process, url)
        yield url


@contextlib.contextmanager
def serving(dialect: str, files: str, count: int, token_ms: int) -> Iterator[str]:
    """A proxy before one worker that could run all streams together."""
    many = str(2 * count)
    pace = (
        "--role", "decode", "--max-num-seqs", many, "--max-num-queued", many,
        "--decode-base-ms", str(token_ms), "--num-gpu-blocks-override", str(8 * count),
        "--max-num-batched-tokens", "1000000", "--max-prefill-beside-decode", "0",
    )  # fmt: skip
    spoken = ("--model", MODEL, "--dialect", dialect)
    with started(files, "services.mock", *spoken, *pace) as worker:
        room = ("--max-in-flight", many, "--max-queue", many, "--max-per-worker", many)
        to = ("--decode-servers-urls", worker)
        with started(files, "proxy", *spoken, *room, *to) as proxy:
            yield proxy


def rows_of(dialect: str, count: int) -> list[Row]:
    """Under a soft limit alone, then under a hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows: list[Row] = []
    for files, token_ms in (
        (f"{SOFT}:{hard}", int(_SLOW_MS * count)),
        (f"{SOFT}:{SOFT}", _FAST_MS),
    ):
        name = f"{dialect}, limit {files}"
        with serving(dialect, files, count, token_ms) as url:
            began = time.monotonic()
            load = uvloop.run(streams(url, count))
            took_s = time.monotonic() - began
        print(f"{name}: {dict(load.results)}, {load.most} at once, {took_s:.1f} s", flush=True)
        good = load.results["answered"]
        refused = load.results["refused"]
        rows.append(at_most(f"{name}: neither answered nor refused", count - good - refused, 0, 1))
        if hard > SOFT and files != f"{SOFT}:{SOFT}":
            rows.append(at_least(f"{name}: answered", good, count, 1))
            rows.append(
                at_least(f"{name}: streams at once, beside the soft limit", load.most, SOFT, 1)
            )
        else:
            rows.append(at_least(f"{name}: answered", good, count))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row does not hold."""
    parser = arguments("open_files", __doc__)
    parser.add_argument("--streams", type=int, default=0, help="open streams (5000; --quick: 1500)")
    args = parser.parse_args(argv)
    raise_limit()
    print(hardware(("aiohttp", "uvloop"), 0), flush=True)
    count = args.streams or (1500 if args.quick else 5000)
    rows = [row for dialect in ("tokens", "openai") for row in rows_of(dialect, count)]
    print("\n".join([head(), *map(line, rows)]))
    return finish(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
