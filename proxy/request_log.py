"""One log line per request, at little cost.

`logging` takes about as long for a line as it takes to write one out. Lines are made and written
together here, a few times a second: made one by one, between other work, each takes twice as long.
Those of the last moment are lost if the process is killed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from protocol.request_record import RequestRecord
from proxy.answer_usage import note_usage

logger = logging.getLogger(__name__)
_FLUSH_S = 0.25
_MOST = 256  # requests whose lines wait
_ENCODER = msgspec.json.Encoder()
_TEXT = b"%b,%03d INFO proxy: request %b\n"
_JSON = (
    b'{"time":"%b.%03dZ","level":"info","process":"proxy","logger":"proxy.request_log",'
    b'"message":"request",%b\n'
)


class RequestLog:
    """The lines of a proxy's requests, at level INFO of the logger `proxy.request_log`.

    `on`: whether any are written. `form`: text or json. `write`: takes several lines at once;
    standard error by default. `counted`: gets each record before its line is made.
    """

    def __init__(
        self,
        on: bool,
        form: str,
        write: Callable[[str], object] | None = None,
        counted: Callable[[RequestRecord], None] = lambda record: None,
    ) -> None:
        self._on = on
        self._json = form == "json"
        self._write = write or _to_stderr
        self._counted = counted
        self._waiting: list[RequestRecord] = []

    @property
    def writes(self) -> bool:
        """Whether anybody will read what a record says."""
        return self._on and logger.isEnabledFor(logging.INFO)

    def over(self, record: RequestRecord, *, always: bool = True) -> None:
        """A request has been answered, or given up. `always`: it is counted where no line is
        written too. Called on the event loop."""
        record.ended_at = time.monotonic()
        if not self.writes:
            if always:
                self._counted(record)
            return
        waiting = self._waiting
        waiting.append(record)
        if len(waiting) == 1:
            asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)
        elif len(waiting) >= _MOST:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        waiting, self._waiting = self._waiting, []
        if waiting and self.writes:
            lines = self._lines(waiting, time.time() - time.monotonic())
            self._write(b"".join(lines).decode())

    def _lines(self, records: Sequence[RequestRecord], offset_s: float) -> Iterator[bytes]:
        """`offset_s`: from monotonic times to the time of day."""
        json, last, stamp = self._json, 0, b""
        for record in records:
            note_usage(record)
            self._counted(record)
            now = record.ended_at + offset_s
            second = int(now)
            if second != last:  # it takes as long as all the rest of a line
                last, stamp = second, _stamp(second, utc=json)
            # JSON in both forms: quoting each field by itself takes three times as long.
            said, millis = _ENCODER.encode(record.fields()), int((now - second) * 1e3)
            yield _JSON % (stamp, millis, said[1:]) if json else _TEXT % (stamp, millis, said)


def _stamp(second: int, *, utc: bool) -> bytes:
    form, parts = (
        ("%Y-%m-%dT%H:%M:%S", time.gmtime) if utc else ("%Y-%m-%d %H:%M:%S", time.localtime)
    )
    return time.strftime(form, parts(second)).encode()


def _to_stderr(lines: str) -> None:
    sys.stderr.write(lines)
    sys.stderr.flush()
