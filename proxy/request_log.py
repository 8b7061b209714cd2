"""One log line per request, at little cost, with the token counts that a relayed answer ends on.

`logging` takes about as long for a line as it takes to write one out. Lines are made and written
together here, a few times a second: made one by one, between other work, each takes twice as long.
Those of the last moment are lost if the process is killed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from protocol.request_record import RequestRecord

logger = logging.getLogger(__name__)
_FLUSH_S = 0.25  # for which a line waits
_MOST = 256  # requests whose lines wait
_ENCODER = msgspec.json.Encoder()
_TEXT = b"%b,%03d INFO proxy: request %b\n"
_JSON = (
    b'{"time":"%b.%03dZ","level":"info","process":"proxy","logger":"proxy.request_log",'
    b'"message":"request",%b\n'
)
# A quote inside a JSON string has a backslash before it, so that no text looks like this.
_USAGE = b'"usage"'
_COUNT = re.compile(rb'"(prompt_tokens|completion_tokens|cached_tokens)"\s*:\s*(\d{1,12})')
# As vLLM and this project write it: reading that alone takes a third of the time.
_PLAIN = re.compile(
    rb'"usage": ?\{"prompt_tokens": ?(\d{1,12}), ?(?:"total_tokens": ?\d{1,12}, ?)?'
    rb'"completion_tokens": ?(\d{1,12})(?:, ?"total_tokens": ?\d{1,12})?\}'
).match
_FAR = 1024  # bytes behind its name in which a usage ends


class RequestLog:
    """The lines of a proxy's requests, at level INFO of the logger `proxy.request_log`.

    `on`: whether any are written. `form`: text or json. `write`: takes several lines at once;
    standard error by default. `counted`: gets the records before their lines are made.
    """

    def __init__(
        self,
        on: bool,
        form: str,
        write: Callable[[str], object] | None = None,
        counted: Callable[[Sequence[RequestRecord]], None] = lambda records: None,
    ) -> None:
        self._on = on
        self._json = form == "json"
        self._write = write or _to_stderr
        self._counted = counted
        self._waiting: list[RequestRecord] = []

    @property
    def writes(self) -> bool:
        """Whether a line is written of each record."""
        return self._on and logger.isEnabledFor(logging.INFO)

    def over(self, record: RequestRecord, *, always: bool = True) -> None:
        """A request has been answered, or given up. `always`: it is counted where no line is
        written too. Called on the event loop."""
        record.ended_at = time.monotonic()
        if not self.writes:
            if always:
                self._counted((record,))
            return
        waiting = self._waiting
        waiting.append(record)
        if len(waiting) == 1:
            # One timer at a time; where `_MOST` lines come sooner, it may find nothing to write.
            asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)
        elif len(waiting) >= _MOST:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        waiting, self._waiting = self._waiting, []
        if waiting and self.writes:
            for record in waiting:
                note_usage(record)
            self._counted(waiting)
            lines = self._lines(waiting, time.time() - time.monotonic())
            self._write(b"".join(lines).decode())

    def _lines(self, records: Sequence[RequestRecord], offset_s: float) -> Iterator[bytes]:
        """`offset_s`: from monotonic times to the time of day."""
        json, last, stamp = self._json, 0, b""
        for record in records:
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


def note_usage(record: RequestRecord) -> None:
    """Note the counts of the last usage in the record's `tail`, as far as they are not known."""
    for piece in reversed(record.tail):
        start = piece.rfind(_USAGE)
        if start < 0:
            continue
        if (plain := _PLAIN(piece, start)) is not None:
            record.prompt_tokens, record.completion_tokens = int(plain[1]), int(plain[2])
            return
        found = dict(_COUNT.findall(piece, start, start + _FAR))
        if not found:
            continue
        record.prompt_tokens = int(found.get(b"prompt_tokens", record.prompt_tokens))
        record.completion_tokens = int(found.get(b"completion_tokens", record.completion_tokens))
        if record.cached_tokens < 0:
            record.cached_tokens = int(found.get(b"cached_tokens", -1))
        return
