"""The requests of a worker as RTP-LLM's master wants to hear of them: what runs, what has ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from protocol.errors import TriptychError
from protocol.rtp_status import TaskInfo
from protocol.types import RequestOutput

_REMEMBERED = 10_000  # ended tasks that can still be asked for


@dataclass
class Task:
    """One request while it is here."""

    info: TaskInfo
    clock: Callable[[], float]
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.clock()

    def observe(self, outputs: list[RequestOutput]) -> None:
        """A step has put something out."""
        info = self.info
        if info.phase == "RECEIVED":
            info.phase = "RUNNING"
            info.waiting_time_ms = self._ms()
            info.prefix_length = max((o.cached_tokens or 0 for o in outputs), default=0)
        info.iterate_count += 1

    def told(self) -> TaskInfo:
        """As of now."""
        past, waiting = self._ms(), self.info.phase == "RECEIVED"
        return msgspec.structs.replace(
            self.info,
            waiting_time_ms=past if waiting else self.info.waiting_time_ms,
            execution_time_ms=0 if waiting else past - self.info.waiting_time_ms,
        )

    def _ms(self) -> int:
        return round((self.clock() - self.since) * 1e3)


class TaskLog:
    """Running requests, and the latest that have ended, each under a number of its own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[int, Task] = {}
        self._ended: deque[tuple[int, TaskInfo]] = deque(maxlen=_REMEMBERED)
        self._begun = 0
        self.version = 0
        """How many have ended."""

    @contextlib.contextmanager
    def task(self, request_id: str, input_length: int) -> Iterator[Task]:
        """A request is here for as long as the context lasts."""
        self._begun += 1
        number = self._begun
        task = self._running[number] = Task(TaskInfo(request_id, input_length), self._clock)
        try:
            yield task
        except TriptychError as error:
            task.info.error_info = error.message
            raise
        # Both: a stream is closed, an awaited answer is cancelled.
        except (GeneratorExit, asyncio.CancelledError):
            task.info.error_info = "the client has left"
            raise
        finally:
            del self._running[number]
            self.version += 1
            ended = msgspec.structs.replace(task.told(), end_time_ms=round(time.time() * 1e3))
            self._ended.append((self.version, ended))

    def running(self) -> list[TaskInfo]:
        return [task.told() for task in self._running.values()]

    def ended(self, since: int) -> list[TaskInfo]:
        """Those that ended after there were `since`, oldest first; all if there never were so many
        here, as the worker has restarted since the caller asked."""
        since = since if since <= self.version else -1
        return [info for version, info in self._ended if version > since]
