"""Ten times the load that a stack can take, for a minute: what is admitted keeps its latency, the
rest is refused at once, and nothing grows.

    python -m benchmarks.overload [--quick] [--json FILE] [--master]

A proxy before mock workers (an encoder, a prefill and a decode worker on the timing model, so that
they cost no processor time), on one machine. First as many clients as the workers have room for:
this gives the rate that they can take and the latency at full load (`peer`). Then requests come at
ten times that rate, however many wait already, then at half of it again. `--master`: admission is
the master's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
import uvloop

from benchmarks.common.pictures import sample
from benchmarks.common.rows import Row, arguments, at_least, at_most, finish, hardware, head, line
from benchmarks.soak.books import private_bytes
from benchmarks.soak.stack import MODEL, Service, service

SEED = 5
TIMES = 10
BATCH, TOKENS = 16, 16
WAIT_S = 1.0
REFUSAL_BAR_S = 0.1
LATENCY_BAR, QUEUE_BAR, MEMORY_BAR = 1.25, 1.5, 1.5
_PACE = ("--max-num-seqs", str(BATCH), "--decode-base-ms", "20", "--log-level", "warning")
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Reply:
    """Seconds from the request's sending to the first token and to the end; `after_s` is what
    Retry-After says, 0 without."""

    sent: float  # when the request was sent, s of the monotonic clock
    status: int  # HTTP status, 0 without an answer
    first_s: float  # until the first token
    whole_s: float  # until the end
    after_s: int = 0
    tokens: int = 0  # output tokens

    @property
    def token_s(self) -> float:
        return (self.whole_s - self.first_s) / max(1, self.tokens - 1)


class Client:
    """Streams short answers about pictures and about nothing, through one session."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = f"{url}/v1/chat/completions"
        questions = [sample(kind, n) for n in range(40) for kind in ("text", "describe")]
        self._bodies = [
            {
                "model": MODEL, "messages": question.openai_messages(), "max_tokens": TOKENS,
                "ignore_eos": True, "stream": True, "return_token_ids": True,
            }
            for question in questions
        ]  # fmt: skip
        self._chance = random.Random(SEED)
        self.replies: list[Reply] = []

    async def ask(self) -> None:
        """Status 0 if there is no answer."""
        sent = time.monotonic()
        try:
            await self._ask(sent)
        except aiohttp.ClientError:
            self.replies.append(Reply(sent, 0, 0.0, time.monotonic() - sent))

    async def _ask(self, sent: float) -> None:
        body = self._chance.choice(self._bodies)
        async with self._session.post(self._url, json=body) as response:
            first, tokens = 0.0, 0
            async for row in response.content:
                if row.startswith(b"data: {") and b'"token_ids":[' in row.replace(b" ", b""):
                    first = first or time.monotonic() - sent
                    tokens += 1
            after = int(response.headers.get("retry-after", 0))
        whole = time.monotonic() - sent
        self.replies.append(Reply(sent, response.status, first or whole, whole, after, tokens))

    async def closed(self, clients: int, seconds: float) -> list[Reply]:
        """So many clients that ask one request after the other."""
        until = time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < until:
                await self.ask()

        self.replies = []
        await asyncio.gather(*(one() for _ in range(clients)))
        return self.replies

    async def opened(self, rate: float, seconds: float) -> list[Reply]:
        """Requests at a rate, whether or not the earlier ones are answered."""
        self.replies = []
        begun, tasks = time.monotonic(), set[asyncio.Task[None]]()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
            tasks.add(task := asyncio.create_task(self.ask()))
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=_TIMEOUT_S)
        return self.replies


@contextlib.contextmanager
def serving(folder: Path, master: bool, *more: str) -> Iterator[list[Service]]:
    """The proxy first, ready; all are ended on leaving. `more`: flags of the proxy."""
    masters = [service("master", "services.master", _MASTER, folder)] if master else []
    joined = ["--master-url", masters[0].url] if masters else []
    workers = [
        service(role, "services.mock", ["--role", role, "--model", MODEL, *_PACE, *joined], folder)
        for role in ("encode", "prefill", "decode")
    ]
    urls = [f"--{worker.name}-servers-urls={worker.url}" for worker in workers]
    flags = ["--model", MODEL, "--max-queue-wait", str(WAIT_S), *(joined or urls), *more]
    proxy = service("proxy", "proxy", flags, folder)
    started: list[Service] = []
    try:
        for one in (*masters, *workers, proxy):
            one.start()
            started.append(one)
            one.wait_ready()
        yield [proxy, *masters, *workers]
    finally:
        for one in reversed(started):
            one.stop()


_MASTER = ("--max-queue-wait", str(WAIT_S), "--log-level", "warning")


async def load(url: str, stack: Sequence[Service], seconds: float) -> list[Row]:
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        client = Client(session, url)
        await client.closed(2 * BATCH, 3.0)
        full = await client.closed(2 * BATCH, seconds / 4)
        rate = len(full) / (full[-1].sent + full[-1].whole_s - full[0].sent)
        calm = await client.opened(rate / 2, seconds / 6)
        before = sum(private_bytes(pid) for one in stack[:2] for pid in one.pids())
        flood = await client.opened(TIMES * rate, seconds)
        peak = sum(private_bytes(pid) for one in stack[:2] for pid in one.pids())
        after = await client.opened(rate / 2, seconds / 6)
    print(f"full load: {rate:.1f} requests/s; {_said('full load', full)}")
    for name, replies in (("half", calm), (f"{TIMES}x", flood), ("half again", after)):
        print(f"  {_said(name, replies)}")
    return _rows(full, calm, flood, after, rate, (before / 2**20, peak / 2**20))


def _said(name: str, replies: Sequence[Reply]) -> str:
    good = [reply for reply in replies if reply.status == 200]
    statuses = dict(Counter(reply.status for reply in replies))
    first = f"{_at(50, good, 'first_s'):.2f} / {_at(99, good, 'first_s'):.2f} s"
    return (
        f"{name}: {statuses}, p50 / p99 of the first token {first}, "
        f"of a token p99 {_at(99, good, 'token_s') * 1e3:.0f} ms"
    )


def _at(percent: float, replies: Sequence[Reply], name: str) -> float:
    values = [getattr(reply, name) for reply in replies]
    return float(np.percentile(values, percent)) if values else float("inf")


def _rows(
    full: Sequence[Reply], calm: Sequence[Reply], flood: Sequence[Reply], after: Sequence[Reply],
    rate: float, memory: tuple[float, float],
) -> list[Row]:  # fmt: skip
    good = [reply for reply in flood if reply.status == 200]
    refused = [reply for reply in flood if reply.status in (429, 503)]
    other = len(flood) - len(good) - len(refused)
    mute = sum(reply.after_s < 1 for reply in refused)
    span = flood[-1].sent - flood[0].sent
    least = _at(99, full, "first_s") + WAIT_S
    return [
        at_least(f"answered at {TIMES}x, requests/s beside full load", len(good) / span, rate, 0.9),
        at_most("first token p99, s, beside full load's + the queue's bound",
                _at(99, good, "first_s"), least, QUEUE_BAR),
        at_most("time per token p99, ms, beside full load's", _at(99, good, "token_s") * 1e3,
                _at(99, full, "token_s") * 1e3, LATENCY_BAR),
        at_most("refusal p99, s, beside what is at once", _at(99, refused, "whole_s"),
                REFUSAL_BAR_S, 1),
        at_most("neither answered nor refused by 429 or 503", other, 0, 1),
        at_most("refused without Retry-After", mute, 0, 1),
        at_most("not answered at half load afterwards", sum(r.status != 200 for r in after), 0, 1),
        at_most("first token p99 at half load afterwards, s, beside full load's",
                _at(99, after, "first_s"), _at(99, full, "first_s"), 1),
        at_most("memory of proxy and master, MiB, at the end of it beside before", memory[1],
                memory[0], MEMORY_BAR),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row does not hold."""
    args = _arguments(argv)
    print(hardware(("aiohttp", "uvloop"), SEED), flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="overload-") as name,
        serving(Path(name), args.master) as stack,
    ):
        books = stack[: 2 if args.master else 1]
        rows = uvloop.run(load(stack[0].url, books, 15.0 if args.quick else 60.0))
    print("\n".join([head(), *map(line, rows)]))
    return finish(rows, args.json)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("overload", __doc__)
    parser.add_argument("--master", action="store_true", help="admission by the master")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
