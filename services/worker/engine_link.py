"""The worker's link to its engine process: start it, send and receive, notice its death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from connectors.owners import OwnedFolder
from protocol.errors import (
    InvalidRequest,
    NotServing,
    TriptychError,
    Unavailable,
    error_info,
    from_info,
)
from protocol.registry import Progress
from services.engine import messages
from services.engine.config import EngineConfig
from services.engine.environment import environment_of
from services.worker.open_requests import OpenRequests
from services.worker.queries import Queries
from services.worker.socket_folder import socket_folder
from services.worker.stall_watch import StallBounds, StallWatch

logger = logging.getLogger(__name__)
_STOP_S = 10.0
_LAST_WORDS_S = 1.0
_MAX_COMMANDS = 100_000
_BOUNDS = StallBounds(silent_s=3.0)


class EngineLink:
    """One engine process. Create with `start`; `close` ends the process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        folder: OwnedFolder,
        bounds: StallBounds = _BOUNDS,
        changed: Callable[[], None] = lambda: None,
        adapters_changed: Callable[[dict[str, str]], None] = lambda _: None,
    ) -> None:
        self._process = process
        self._folder = folder
        self._changed = changed
        self._adapters_changed = adapters_changed
        self._watch_beats = StallWatch(f"ipc://{folder.path}/beats", bounds, self._stall_changed)
        context: zmq.asyncio.Context = zmq.asyncio.Context.instance()
        # Not asyncio's, so that `_send` knows at once whether the engine takes a command.
        self._commands: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        self._commands.setsockopt(zmq.SNDHWM, _MAX_COMMANDS)
        self._events: Any = context.socket(zmq.PULL)
        self._requests = OpenRequests()
        self._queries = Queries()
        self._ready: asyncio.Future[messages.Ready] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self.dead = asyncio.Event()

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        timeout_s: float,
        bounds: StallBounds = _BOUNDS,
        changed: Callable[[], None] = lambda: None,
        adapters_changed: Callable[[dict[str, str]], None] = lambda _: None,
    ) -> Self:
        """Start an engine and wait until it is ready. `changed` is called when it stalls, and when
        it goes on; `adapters_changed` with the revisions of all LoRA adapters by name, whenever
        they are others.

        Raises the engine's own error if it cannot start, `Unavailable` after `timeout_s`.
        """
        folder = socket_folder(Path(tempfile.gettempdir()))
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "services.engine.process", stdin=asyncio.subprocess.PIPE,
                env=environment_of(os.environ),
            )  # fmt: skip
            client = cls(process, folder, bounds, changed, adapters_changed)
        except BaseException:
            folder.close()
            raise
        try:
            await client._open(config, timeout_s)
        except BaseException:
            await client.close()
            raise
        return client

    async def _open(self, config: EngineConfig, timeout_s: float) -> None:
        commands, events = (f"ipc://{self._folder.path}/{name}" for name in ("commands", "events"))
        beats = f"ipc://{self._folder.path}/beats"
        self._commands.bind(commands)
        self._events.bind(events)
        assert self._process.stdin is not None
        line = msgspec.json.encode(messages.Start(commands, events, config, beats)) + b"\n"
        self._process.stdin.write(line)
        await self._process.stdin.drain()
        work = (self._receive(), self._watch(), self._watch_beats.run())
        self._tasks = [asyncio.create_task(self._supervised(one)) for one in work]
        try:
            async with asyncio.timeout(timeout_s):
                # Else a timeout would cancel the future, and `_receive` fail where it sets it.
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise Unavailable(
                f"the engine was not ready within {timeout_s:g} s: raise --start-timeout"
            ) from None

    @property
    def ready(self) -> messages.Ready:
        return self._ready.result()

    @property
    def progress(self) -> Progress:
        """How the engine's steps come on, as of its last beat."""
        return self._watch_beats.progress

    @property
    def stall(self) -> str:
        """Why it is taken for stalled, "" if it is not. Once it goes on it serves again."""
        return self._watch_beats.stall

    @property
    def outage(self) -> str:
        """Why it takes no requests, "" if it does."""
        return "the engine of this worker has ended" if self.dead.is_set() else self.stall

    def _stall_changed(self) -> None:
        if self.stall:
            logger.error("%s", self.stall)
            # Each caller aborts what it has asked for: an engine that goes on finds that first.
            self._requests.fail(error_info(NotServing(self.stall)))
        else:
            logger.info("the engine goes on")
        self._changed()

    async def _supervised(self, work: Coroutine[Any, Any, None]) -> None:
        """If a part of the link fails, all of it does: a worker that goes on without would wait for
        outputs that are not read, or miss that its engine stalls."""
        try:
            await work
        except Exception as error:
            logger.exception("the link to the engine failed")
            self._fail(NotServing(f"the worker's link to its engine failed: {error}"))

    async def _receive(self) -> None:
        while True:
            event = messages.decode_event(await self._events.recv())
            match event:
                case messages.Outputs(outputs, encoded, stages):
                    self._requests.note(stages)
                    self._requests.hand(outputs, encoded)
                case messages.Statistics():
                    self._queries.answer(event)
                case messages.AdapterTable(adapters=adapters, error=error):
                    # Whether or not the caller still waits: the engine has them either way.
                    if error is None:
                        self._adapters_changed(adapters)
                    self._queries.answer(event)
                case messages.Ready():
                    self._ready.set_result(event)
                case messages.Fatal(error):
                    self._fail(from_info(error))

    async def _watch(self) -> None:
        code = await self._process.wait()
        if not self._ready.done():  # its own reason may still be on the way
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self.dead.wait()
        self._fail(NotServing(f"the engine process ended with exit status {code}"))

    def _fail(self, error: TriptychError) -> None:
        """Everything that waits for the engine gets `error`."""
        self.dead.set()
        if not self._ready.done():
            self._ready.set_exception(error)
        self._requests.fail(error_info(error))
        self._queries.fail(error)

    def _send(self, command: messages.Command) -> None:
        """`NotServing` without an engine; one that stalls is only told to stop something."""
        ends = isinstance(command, messages.Abort | messages.Shutdown)
        if self.dead.is_set() or (self.stall and not ends):
            raise NotServing(self.outage)
        try:
            data = messages.encode(command)
        except (OverflowError, RecursionError, ValueError) as error:
            raise InvalidRequest(f"the request cannot be passed on: {error}") from None
        try:
            self._commands.send(data, zmq.NOBLOCK)
        except zmq.Again:
            raise Unavailable("the engine of this worker accepts no commands") from None

    async def _asked(
        self, command: Callable[[int], messages.Command], timeout_s: float
    ) -> messages.Answer:
        """The answer to a command, which gets a number to be answered by."""
        with self._queries.asking() as (query_id, answer):
            try:
                self._send(command(query_id))
                async with asyncio.timeout(timeout_s):
                    return await answer
            except TimeoutError:
                raise Unavailable("the engine did not answer in time") from None

    async def close(self) -> None:
        """End the engine process and release the sockets; idempotent."""
        # One that is loading takes no commands, and has nothing yet that others could miss.
        if self._process.returncode is None and self._ready.done():
            with contextlib.suppress(Unavailable):
                self._send(messages.Shutdown())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._commands.close(linger=0)
        self._events.close(linger=0)
        self._watch_beats.close()
        self._folder.close()
