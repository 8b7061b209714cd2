"""One log line per request, at little cost.

`logging` takes about as long for a line as it takes to write one out. Lines are made here and
written together, a few times a second; those of the last moment are lost if the process is killed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from functools import lru_cache

import msgspec

from protocol.request_record import RequestRecord

logger = logging.getLogger(__name__)
_FLUSH_S = 0.25
_MOST = 256  # lines that wait
_LONGEST = 128  # characters that a client chooses


class RequestLog:
    """The lines of a proxy's requests, at level INFO of the logger `proxy.request_log`.

    `on`: whether any are written. `form`: text or json. `write`: takes several lines at once;
    standard error by default.
    """

    def __init__(self, on: bool, form: str, write: Callable[[str], object] | None = None) -> None:
        self._on = on
        self._line = _json if form == "json" else _text
        self._write = write or _to_stderr
        self._lines: list[str] = []

    @property
    def writes(self) -> bool:
        """Whether anybody will read what a record says."""
        return self._on and logger.isEnabledFor(logging.INFO)

    def over(self, record: RequestRecord) -> None:
        """A request has been answered, or given up. Called on the event loop."""
        if not self.writes:
            return
        if not self._lines:
            asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)
        self._lines.append(self._line(_fields(record)))
        if len(self._lines) >= _MOST:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        lines, self._lines = self._lines, []
        if lines:
            self._write("".join(lines))


def _fields(record: RequestRecord) -> dict[str, object]:
    fields = record.fields()
    fields["id"] = record.request_id[:_LONGEST]
    fields["model"] = record.model[:_LONGEST]
    return fields


def _text(fields: dict[str, object]) -> str:
    """The fields as JSON: quoting each by itself takes three times as long."""
    now = time.time()
    stamp = _stamp("%Y-%m-%d %H:%M:%S", time.localtime, int(now))
    said = msgspec.json.encode(fields).decode()
    return f"{stamp},{int(now % 1 * 1e3):03d} INFO proxy: request {said}\n"


def _json(fields: dict[str, object]) -> str:
    now = time.time()
    stamp = _stamp("%Y-%m-%dT%H:%M:%S", time.gmtime, int(now))
    head: dict[str, object] = {
        "time": f"{stamp}.{int(now % 1 * 1e3):03d}Z",
        "level": "info",
        "process": "proxy",
        "logger": __name__,
        "message": "request",
    }
    return msgspec.json.encode(head | fields).decode() + "\n"


@lru_cache(maxsize=1)
def _stamp(form: str, parts: Callable[[float], time.struct_time], second: int) -> str:
    """Made once a second: it takes as long as all the rest of a line."""
    return time.strftime(form, parts(second))


def _to_stderr(lines: str) -> None:
    sys.stderr.write(lines)
    sys.stderr.flush()
