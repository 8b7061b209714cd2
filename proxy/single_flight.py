"""Work that several requests need, done once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from proxy.fleet.worker import Instance

ResultT = TypeVar("ResultT")


@dataclass(eq=False)
class Flight(Generic[ResultT]):
    """A piece of work under way, and how many requests wait for it. `worker` does it now."""

    task: asyncio.Task[ResultT]
    waiters: int = 0
    worker: Instance | None = None


class SingleFlight(Generic[ResultT]):
    """Flights by key. The last request to leave a flight cancels it."""

    def __init__(self) -> None:
        self._flights: dict[bytes | str, Flight[ResultT]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, key: bytes | str) -> Flight[ResultT] | None:
        """The flight under way that a request with this key would join."""
        return self._flights.get(key)

    def forget(self, key: bytes | str) -> Flight[ResultT] | None:
        """No request joins this flight any more; those that have, wait on."""
        return self._flights.pop(key, None)

    async def join(
        self, key: bytes | str, work: Callable[[], Coroutine[Any, Any, ResultT]]
    ) -> tuple[ResultT, bool]:
        """The result, and whether the flight was under way already. Raises what the work does."""
        flight = self._flights.get(key)
        # It may be done, and here only until the last request that joined it has left.
        joined = flight is not None and not flight.task.done()
        if flight is None or not joined:
            flight = self._flights[key] = Flight(asyncio.create_task(work()))
        flight.waiters += 1
        try:
            # A request that leaves must not end the work that others wait for.
            return await asyncio.shield(flight.task), joined
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                flight.task.cancel()
                # It may have been forgotten, and another one begun under its key.
                if self._flights.get(key) is flight:
                    del self._flights[key]
