"""How long a call to a worker is waited for, and the waiting itself."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from protocol.errors import DeadlineExceeded, TriptychError
from proxy.upstream.failures import DROPPED, SILENT, CallFailed, no_connection, unconnected
from services.http.tasks import ended

_T = TypeVar("_T")
_LOOK_S = 0.5


@dataclass(frozen=True)
class Patience:
    """How long to wait: until `deadline` (`time.monotonic`) for the whole, `answer_s` for an answer
    or a stream's first event, `stall_s` between events, and only as long as the worker is `alive`.
    Only of the right one: an answer with a status that names an instance, "" for none, counts if it
    `fits`.
    """

    deadline: float
    answer_s: float = math.inf
    stall_s: float = math.inf
    alive: Callable[[], bool] = lambda: True
    fits: Callable[[str, int], bool] = lambda name, status: True

    @staticmethod
    def of(seconds: float) -> Patience:
        return Patience(time.monotonic() + seconds)


async def patiently(work: Awaitable[_T], patience: Patience, url: str) -> _T:
    """`work` in time; network failures as errors of our tree."""
    late = time.monotonic() + patience.answer_s
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=next_look_s(patience, late, url))
        return task.result()
    except aiohttp.ClientError as error:
        raise unreachable(url, error) from None
    finally:
        if not task.done():
            await ended(task, aiohttp.ClientError)


def next_look_s(patience: Patience, late: float, url: str) -> float:
    """Seconds until it is worth looking again; raises if waiting is over."""
    now = time.monotonic()
    if now >= patience.deadline:
        raise DeadlineExceeded(f"{url}: no answer in time")
    if now >= late:
        raise CallFailed(f"{url}: no answer in time", "stalled", status=504)
    if not patience.alive():
        raise CallFailed(f"{url}: the worker has gone silent", SILENT)
    return min(patience.deadline - now, late - now, _LOOK_S)


def unreachable(url: str, error: aiohttp.ClientError) -> TriptychError:
    if isinstance(error, aiohttp.ClientConnectorError):
        return unconnected(url, error.os_error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return no_connection(url)
    dropped = isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError)
    kind = DROPPED if dropped else "garbage"
    return CallFailed(f"{url}: {type(error).__name__}: {error}", kind)
