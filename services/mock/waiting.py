"""Who waits for a mock engine: for a request's outputs, for what it is to offer or to store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from protocol.errors import from_info
from protocol.types import RequestOutput

Observe = Callable[[list[RequestOutput]], None]


class Sink:
    """Outputs of one request; `observe` sees those of each step. With `whole` its reader is woken
    only when all choices have ended."""

    def __init__(self, choices: set[int], observe: Observe, *, whole: bool) -> None:
        self.left = choices
        self.observe = observe
        self.outputs: list[RequestOutput] = []
        self.waiter: asyncio.Future[None] | None = None
        self._whole = whole

    def put(self, outputs: list[RequestOutput]) -> None:
        self.outputs += outputs
        self.left -= {output.index for output in outputs if output.finish_reason is not None}
        if outputs[-1].error is not None:
            self.left.clear()
        else:
            self.observe(outputs)
        if (
            self.waiter is not None
            and not self.waiter.done()
            and (not self._whole or not self.left)
        ):
            self.waiter.set_result(None)

    async def take(self) -> list[RequestOutput]:
        """What has come since the last time; raises the request's error."""
        if not self.outputs or (self._whole and self.left):
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        outputs, self.outputs = self.outputs, []
        if outputs[-1].error is not None:
            raise from_info(outputs[-1].error)
        return outputs


class Waiters:
    """Callers on one event loop, by the name of what each waits for."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def wait(self, name: str, seconds: float) -> bool:
        """Whether it was released in time."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, []).append(future)
        try:
            done, _ = await asyncio.wait((future,), timeout=seconds)
            return bool(done)
        finally:
            self._waiting[name].remove(future)
            if not self._waiting[name]:
                del self._waiting[name]

    def release(self, name: str) -> None:
        """There is no need to wait any more."""
        for future in self._waiting.get(name, ()):
            if not future.done():
                future.set_result(None)
