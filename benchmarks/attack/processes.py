"""Attacks in processes of their own: each goes on until its process is ended."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import uvloop

from benchmarks.attack.loads import ATTACKS, Attack, Attacker
from services.http.open_files import raise_limit

_START_S = 60.0
_SLICE_S = 0.05


@contextlib.contextmanager
def under(name: str, url: str) -> Iterator[int]:
    """The attack of this name goes on, from a process of its own; gives its id."""
    with _beside(name, _work, name, url) as pid:
        yield pid


@contextlib.contextmanager
def computing(share: float) -> Iterator[int]:
    """A process that has no part in anything computes for this share of a core's time."""
    with _beside("computing", _compute, share) as pid:
        yield pid


@contextlib.contextmanager
def _beside(name: str, work: Callable[..., None], *arguments: Any) -> Iterator[int]:
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=work, args=(*arguments, begun), daemon=True)
    process.start()
    try:
        if not begun.wait(_START_S):
            raise RuntimeError(f"{name}: the attacker did not start")
        assert process.pid is not None
        yield process.pid
    finally:
        process.kill()
        process.join()


def _compute(share: float, begun: Any) -> None:
    """In slices, as an attacker's event loop does."""
    begun.set()
    while True:
        until = time.process_time() + _SLICE_S * share
        while time.process_time() < until:
            pass
        time.sleep(_SLICE_S * (1.0 - share))


def _work(name: str, url: str, begun: Any) -> None:
    raise_limit()
    uvloop.run(_until_ended(ATTACKS[name], url, begun))


async def _until_ended(attack: Attack, url: str, begun: Any) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        once = attack.once()
        begun.set()
        while True:
            await once(Attacker(session, url))
            await asyncio.sleep(attack.pause_s)
