"""Questions to the engine process that wait for an answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator

from protocol.errors import TriptychError
from services.engine import messages


class Queries:
    """Questions to the engine that have one answer each, those that are open, by their numbers."""

    def __init__(self) -> None:
        self._open: dict[int, asyncio.Future[messages.Answer]] = {}
        self._ids = itertools.count()

    @contextlib.contextmanager
    def asking(self) -> Iterator[tuple[int, asyncio.Future[messages.Answer]]]:
        """(number, answer) of a new one, which is open inside."""
        query_id = next(self._ids)
        answer = self._open[query_id] = asyncio.get_running_loop().create_future()
        try:
            yield query_id, answer
        finally:
            self._open.pop(query_id, None)

    def answer(self, told: messages.Answer) -> None:
        """To the query that still waits for it."""
        future = self._open.pop(told.query_id, None)
        if future is not None and not future.done():
            future.set_result(told)

    def fail(self, error: TriptychError) -> None:
        """Nothing is answered any more."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(error)
        self._open.clear()
