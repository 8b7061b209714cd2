"""The last requests of a proxy, for its page."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator

from protocol.request_record import RequestRecord
from proxy.request_log import note_usage

MARK = "page-"
"""Begins the id of each request that the page itself asks. The rest of it is drawn at random, so
that only who asked knows it."""
_MARK = MARK.encode()
_LONGEST_MARKED = len(MARK) + 32
_MOST = 200  # records
_WATCHED_S = 10.0  # since the page has asked last


class RecentRequests:
    """Records of the last requests, those in progress too, newest last.

    A relayed request is recorded only if it is the page's own or an operator has the page open: to
    record all of them would slow each one. `on`: whether there is a page.
    """

    def __init__(self, on: bool, most: int = _MOST) -> None:
        self._on = on
        self._records: deque[RequestRecord] = deque(maxlen=most)
        self._watched = False
        self._until = 0.0

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self._records)

    def wants(self, request_id: bytes) -> bool:
        """Whether a relayed request with this id is to be recorded."""
        return self._watched or (self._on and request_id.startswith(_MARK))

    def watch(self) -> None:
        """An operator has the page open. The page calls this again and again, on the event loop."""
        self._until = time.monotonic() + _WATCHED_S
        if not self._watched:
            self._watched = True
            asyncio.get_running_loop().call_later(_WATCHED_S, self._look_up)

    def _look_up(self) -> None:
        left_s = self._until - time.monotonic()
        self._watched = left_s > 0
        if self._watched:
            asyncio.get_running_loop().call_later(left_s, self._look_up)

    def begun(self, record: RequestRecord) -> None:
        """A request has come."""
        if self._on:
            record.explained, record.shown = self._watched, True
            self._records.append(record)

    def over(self, record: RequestRecord) -> None:
        """It has been answered, or given up. The end of its answer is not kept."""
        if record.shown:
            record.ended_at = record.ended_at or time.monotonic()
            note_usage(record)
            record.tail = (b"", b"")

    def asked_by_page(self, request_id: str) -> RequestRecord | None:
        """The record of a request of the page's own, by its whole id; None if it is forgotten. A
        proxy that renders has put an end of its own to the id."""
        if not request_id.startswith(MARK) or len(request_id) != _LONGEST_MARKED:
            return None
        found = (r for r in reversed(self._records) if r.request_id.startswith(request_id))
        return next(found, None)
