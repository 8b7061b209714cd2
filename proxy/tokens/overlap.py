"""Stages that overlap: one is read ahead of its turn, one is waited for beside another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

from protocol.types import RequestOutput
from services.http.tasks import ended

_T = TypeVar("_T")


class ReadAhead:
    """An iterator whose first step is under way before anyone waits for it; a context manager that
    closes it. `steps` has those after the first."""

    def __init__(self, steps: AsyncGenerator[list[RequestOutput], None]) -> None:
        self.steps = steps
        self._first: asyncio.Future[list[RequestOutput] | None] | None = None

    async def __aenter__(self) -> ReadAhead:
        self._first = asyncio.ensure_future(anext(self.steps, None))
        return self

    async def first(self) -> list[RequestOutput] | None:
        """The first step, None if there is none."""
        assert self._first is not None
        first, self._first = self._first, None
        return await first

    async def __aexit__(self, *_: object) -> None:
        if self._first is not None:
            await ended(self._first)
        await self.steps.aclose()


async def unless_failed(work: Awaitable[_T], encoding: asyncio.Task[Any]) -> _T:
    """The result of `work`; a failure of the encode stage ends it at once with that failure."""
    if encoding.done():
        encoding.result()
        return await work
    task = asyncio.ensure_future(work)
    try:
        waiting: set[asyncio.Future[Any]] = {task, encoding}
        while not task.done():
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if encoding.done():
                encoding.result()
                waiting = {task}
        return task.result()
    finally:
        if not task.done():
            await ended(task)
        elif not task.cancelled():
            task.exception()  # both may fail in one turn: asyncio would log what no one has seen
