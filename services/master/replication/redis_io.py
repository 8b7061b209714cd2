"""A Redis as the masters use it: no retries of its own, every wait bounded, values of any kind."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Coroutine
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from protocol.errors import ConfigError

_TIMEOUT_S = 2.0
_AT_ONCE = 500
_QUOTED = re.compile("'(.*?)'")
_ESCAPES = (
    "in a user name or password '/', '?', '#', '[', ']', '@' and '%' are written as %2F, %3F, %23,"
    " %5B, %5D, %40 and %25"
)


def client_of(url: str) -> Redis:
    """Connects with its first command."""
    return Redis.from_url(
        url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0), decode_responses=False,
    )  # fmt: skip


def check_redis_url(url: str) -> None:
    """`ConfigError` if no client can be made of it, without a word of its password."""
    try:
        _check_ends_at_its_host(url)
        connection = client_of(url).connection_pool.make_connection()  # type: ignore[no-untyped-call]
        # Else it would be found out by each attempt to connect, as a UnicodeError.
        str(getattr(connection, "host", "")).encode("idna")
    except (ValueError, TypeError, RedisError) as error:
        raise ConfigError(f"--redis-url: {_shown(str(error), url)}") from None


def _check_ends_at_its_host(url: str) -> None:
    """`ValueError` if a user name or password seems to hold what ends it."""
    parts = urlsplit(url)
    options = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    # A socket's path may have any character.
    path = "" if parts.scheme == "unix" and not parts.netloc else parts.path
    if any("@" in part for part in (path, *options, parts.fragment)):
        raise ValueError("the '@' does not follow a user name and password")


def _shown(words: str, url: str) -> str:
    """What a library says of a URL, unless it may quote a password, and how to write one."""
    before, at, _ = url.rpartition("@")
    if any("@" in quoted or quoted in before for quoted in _QUOTED.findall(words)):
        words = "the URL is not valid"
    return f"{words}; {_ESCAPES}" if at else words


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Redis]:
    """A client that is closed on leaving."""
    client = client_of(url)
    try:
        yield client
    finally:
        await client.aclose()


async def first(*running: Coroutine[Any, Any, None]) -> None:
    """Until one of them raises; the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in running]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def scan(client: Redis, prefix: str, most: int) -> AsyncIterator[list[str]]:
    """Names of keys, some at a time, `most` in all."""
    names: list[str] = []
    async for key in client.scan_iter(match=prefix + "*", count=_AT_ONCE):
        # Others may write keys here: one that is no text must not end the scan.
        names.append(key.decode(errors="replace"))
        if len(names) >= min(_AT_ONCE, most):
            yield names
            most, names = most - len(names), []
        if most <= 0:
            return
    if names:
        yield names


async def values(client: Redis, names: list[str]) -> list[tuple[str, bytes, int]]:
    """(name, value, ms left) of each key; b"" for one that holds no string."""
    async with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.get(name)
            pipe.pttl(name)
        answers = await pipe.execute(raise_on_error=False)
    found = []
    for name, value, ttl_ms in zip(names, answers[::2], answers[1::2], strict=True):
        if value is not None:
            # An error of a key of another type comes as a value, as nothing is raised.
            held = value if isinstance(value, bytes) else b""
            found.append((name, held, ttl_ms if isinstance(ttl_ms, int) else 0))
    return found
