"""One client attacks, the others ask as before: what their p99 becomes.

    python -m benchmarks.attack [--quick] [--json FILE] [--tenant-share SHARE] [--only ATTACK]

A proxy before mock workers (timing model, three roles), on one machine. Other clients stream short
answers to texts and pictures at a third of what the workers can take; first alone, before and after
all attacks (`peer`), then under each attack (`ours`), which comes from a process of its own. All
share the machine's cores, so that what the attacker itself computes counts against us. The workers
decode no picture: what a real encoder does with one that the proxy lets in is not in here. No
client gets more than half of the places while others ask (`--tenant-share 0.5`); the burst of
streams is measured with the proxy's default, 1 (fair queueing alone), as well. What misses the bar
is measured again beside a process that has no part in it and computes for as much of a core's time
as the attacker did: what others lose to that, they lose to the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import numpy as np
import uvloop

from benchmarks.attack.loads import ATTACKS, BURST
from benchmarks.attack.processes import computing, under
from benchmarks.common.processes import processor_s
from benchmarks.common.rows import Row, arguments, at_most, finish, hardware, head, line
from benchmarks.overload import Client, Reply, serving
from benchmarks.soak.books import private_bytes
from benchmarks.soak.stack import Service
from services.http.open_files import raise_limit

SEED = 5
RATE = 15.0  # requests/s of the others: 16 places, 20 ms a token, 16 tokens
BAR = 1.5
WHOLE_S, QUICK_S = 20.0, 2.5
_TIMEOUT_S = 60.0
_DEFAULT_SHARE = 1.0  # of the proxy


async def others(url: str, seconds: float) -> list[Reply]:
    """What the clients who mean no harm get."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"authorization": "Bearer another-client"}
    async with aiohttp.ClientSession(
        timeout=timeout, connector=connector, headers=headers
    ) as session:
        return await Client(session, url).opened(RATE, seconds)


def measured(seconds: float, share: float, names: Sequence[str], also: str = "") -> list[Row]:
    """`compare` before a proxy that gives one client this share; `also` stands in each row."""
    flags = ("--tenant-share", str(share))
    with (
        tempfile.TemporaryDirectory(prefix="attack-") as folder,
        serving(Path(folder), False, *flags) as stack,
    ):
        return compare(stack, seconds, names, also)


def compare(
    stack: Sequence[Service], seconds: float, names: Sequence[str], also: str = ""
) -> list[Row]:
    """Alone, under each attack, alone again; then what misses the bar beside mere computing."""
    proxy = stack[0]
    uvloop.run(others(proxy.url, 2.0))
    calm = uvloop.run(others(proxy.url, seconds))
    found: dict[str, list[Reply]] = {}
    shares: dict[str, float] = {}
    for name in names:
        with under(name, proxy.url) as attacker:
            before, own = processor_s(attacker), sum(map(processor_s, proxy.pids()))
            found[name] = uvloop.run(others(proxy.url, seconds))
            shares[name] = min(1.0, (processor_s(attacker) - before) / seconds)
            own = (sum(map(processor_s, proxy.pids())) - own) / seconds
            memory = sum(map(private_bytes, proxy.pids())) >> 20
        print(
            f"{name}: {_said(found[name])}, the proxy holds {memory} MiB; of a core's time the"
            f" attacker took {shares[name]:.0%}, the proxy {own:.0%}",
            flush=True,
        )
    calm += uvloop.run(others(proxy.url, seconds))
    print(f"alone: {_said(calm)}", flush=True)
    rows = []
    for name, replies in found.items():
        own_rows = _rows(name + also, replies, calm)
        rows += own_rows
        if not all(row.holds for row in own_rows):
            with computing(shares[name]):
                beside = uvloop.run(others(proxy.url, seconds))
            told = f"{name}{also}; peer: a process that computes {shares[name]:.0%} of the time"
            rows += _rows(told, replies, beside)[1:]
    return rows


def _said(replies: Sequence[Reply]) -> str:
    statuses = dict(Counter(reply.status for reply in replies))
    return f"{statuses}, first token p50 {_at(50, replies, 'first_s'):.0f} ms"


def _at(percent: float, replies: Sequence[Reply], name: str) -> float:
    """ms"""
    return 1e3 * float(np.percentile([getattr(reply, name) for reply in replies], percent))


def _rows(name: str, replies: Sequence[Reply], calm: Sequence[Reply]) -> list[Row]:
    failed = sum(reply.status != 200 for reply in replies)
    told = (("first token", "first_s"), ("whole answer", "whole_s"))
    return [
        at_most(f"{name}: others' requests that failed", failed, 0, 1),
        *(
            at_most(f"{name}: {what} p99, ms", _at(99, replies, one), _at(99, calm, one), BAR)
            for what, one in told
        ),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row does not hold."""
    args = _arguments(argv)
    raise_limit()
    print(hardware(("aiohttp", "uvloop", "uvicorn"), SEED), flush=True)
    seconds = QUICK_S if args.quick else args.seconds
    names = args.only or [*ATTACKS]
    rows = measured(seconds, args.tenant_share, names)
    if BURST in names and args.tenant_share != _DEFAULT_SHARE:
        also = f", --tenant-share {_DEFAULT_SHARE:g}"
        rows += measured(seconds, _DEFAULT_SHARE, [BURST], also)
    print("\n".join([head(), *map(line, rows)]))
    return finish(rows, args.json)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("attack", __doc__)
    parser.add_argument("--seconds", type=float, default=WHOLE_S, help="seconds of each attack")
    parser.add_argument(
        "--tenant-share", type=float, default=0.5, help="the proxy's --tenant-share"
    )
    parser.add_argument(
        "--only",
        choices=[*ATTACKS],
        action="append",
        help="run only this attack; may be given again",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
