"""Sends cases and says what is wrong with the answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.fuzz.cases import Case

_AT_ONCE = 48
_SILENT_S = 0.3  # that a client which stops in the middle waits
_LONGEST_S = 25.0
_MOST = 1 << 22
_STATUS = re.compile(rb"(?:\A|(?<=[\r\n}>.]))HTTP/1\.[01] (\d{3})")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_INTERNAL = re.compile(rb'"code": ?"internal_error"')
_CODE = re.compile(rb'"code": ?"(\w+)"')
_DELIBERATE = (503, 504)


@dataclass
class Findings:
    """`statuses`: how often each was answered, 503 and 504 by their codes; 0 is no answer.
    `defects`: what is wrong, and of which case."""

    statuses: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    sent: int = 0


async def attack(cases: Iterable[Case]) -> Findings:
    """All of them, a few at once."""
    found, waiting = Findings(), iter(cases)

    async def work() -> None:
        for one in waiting:
            data, ended = await _answer(one)
            found.sent += 1
            statuses = [int(status) for status in _STATUS.findall(data)]
            found.statuses.update(_named(status, data) for status in statuses or [0])
            wrong = _wrong(one, statuses, data, ended)
            if wrong:
                found.defects.append(f"case {one.number}, {one.told}: {wrong}")

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return found


async def _answer(one: Case) -> tuple[bytes, bool]:
    """(what came, whether the answer had an end)"""
    data = bytearray()
    try:
        async with asyncio.timeout(_LONGEST_S):
            reader, writer = await asyncio.open_connection(one.target.host, one.target.port)
            try:
                await _exchange(one, reader, writer, data)
            finally:
                writer.transport.abort()
    except TimeoutError:
        return bytes(data), False
    except OSError as error:
        return b"" if isinstance(error, ConnectionResetError) else bytes(data), True
    return bytes(data), True


async def _exchange(
    one: Case, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytearray
) -> None:
    sending = asyncio.create_task(_send(one.sent, writer))
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SILENT_S if one.cut else None):
                while not _complete(data, one.sent) and (piece := await reader.read(1 << 16)):
                    data += piece
    finally:
        sending.cancel()


async def _send(sent: bytes, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.write(sent)
        await writer.drain()


def _complete(data: bytearray, sent: bytes = b"") -> bool:
    """Whether a first answer is whole (or so long that it need not be). One to HEAD has no body."""
    head, found, body = bytes(data).partition(b"\r\n\r\n")
    while head[9:12] == b"100":
        head, found, body = body.partition(b"\r\n\r\n")
    if not found:
        return False
    if sent.startswith(b"HEAD "):
        return True
    length = _LENGTH.search(head + b"\r\n")
    if length is not None:
        return len(body) >= int(length[1])
    return body.endswith(b"0\r\n\r\n") or len(data) > _MOST


def _named(status: int, data: bytes) -> str:
    code = _CODE.search(data) if status in _DELIBERATE else None
    return f"{status} {code[1].decode()}" if code else str(status)


def _wrong(one: Case, statuses: list[int], data: bytes, ended: bool) -> str:
    """Empty if nothing is."""
    bad = [status for status in statuses if status >= 500 and status not in _DELIBERATE]
    if bad or _INTERNAL.search(data):
        return f"HTTP {bad or statuses}: {data[-300:]!r}"
    if not ended:
        return f"no end: {data[:100]!r}"
    if not statuses and not (one.cut or one.mangled):
        return f"no answer: {data[:100]!r}"
    if statuses and 400 <= statuses[0] < 500 and statuses[0] != 499 and not _is_error(data):
        return f"not an error's form: {data[:400]!r}"
    return ""


def _is_error(data: bytes) -> bool:
    head, _, body = data.partition(b"\r\n\r\n")
    if b"application/json" not in head.lower() or not body:
        return not body or body.startswith(b"HTTP/1.")  # to HEAD, or nothing to say
    try:
        error = json.JSONDecoder().raw_decode(body.decode())[0]["error"]
        return isinstance(error["message"], str)
    except (ValueError, KeyError, TypeError, IndexError):
        return False
