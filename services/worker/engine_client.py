"""The worker's handle on its engine process: start it, talk to it, notice its death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from protocol.errors import (
    InvalidRequest,
    NotServing,
    TriptychError,
    Unavailable,
    error_info,
    from_info,
)
from protocol.registry import Progress
from protocol.request_record import RequestRecord
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.engine import messages
from services.engine.config import EngineConfig
from services.engine.environment import environment_of, quieted
from services.worker.open_requests import OpenRequests
from services.worker.queries import Queries
from services.worker.stall_watch import StallBounds, StallWatch

logger = logging.getLogger(__name__)
_STOP_S = 10.0
_QUERY_S = 10.0
_LOAD_S = 60.0  # an adapter of some hundred MB from a slow disk
_LAST_WORDS_S = 1.0
_MAX_COMMANDS = 100_000
_BOUNDS = StallBounds(silent_s=3.0)


class EngineClient:
    """One engine process. Create with `start`; `close` ends the process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        directory: Path,
        bounds: StallBounds = _BOUNDS,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._process = process
        self._directory = directory
        self._changed = changed
        self._watch_beats = StallWatch(f"ipc://{directory}/beats", bounds, self._stall_changed)
        context: zmq.asyncio.Context = zmq.asyncio.Context.instance()
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
    ) -> EngineClient:
        """Start an engine and wait until it is ready. `changed` is called when it stalls, and when
        it goes on.

        Raises the engine's own error if it cannot start, `Unavailable` after `timeout_s`.
        """
        directory = Path(tempfile.mkdtemp(prefix="triptych-"))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.engine.process", stdin=asyncio.subprocess.PIPE,
            env=environment_of(quieted(os.environ)),
        )  # fmt: skip
        client = cls(process, directory, bounds, changed)
        try:
            await client._open(config, timeout_s)
        except BaseException:
            await client.close()
            raise
        return client

    async def _open(self, config: EngineConfig, timeout_s: float) -> None:
        commands, events = (f"ipc://{self._directory}/{name}" for name in ("commands", "events"))
        beats = f"ipc://{self._directory}/beats"
        self._commands.bind(commands)
        self._events.bind(events)
        assert self._process.stdin is not None
        line = msgspec.json.encode(messages.Start(commands, events, config, beats)) + b"\n"
        self._process.stdin.write(line)
        await self._process.stdin.drain()
        work = (self._receive(), self._watch(), self._watch_beats.run())
        self._tasks = [asyncio.create_task(one) for one in work]
        try:
            async with asyncio.timeout(timeout_s):
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

    async def _receive(self) -> None:
        while True:
            event = messages.decode_event(await self._events.recv())
            match event:
                case messages.Outputs(outputs, encoded, stages):
                    self._requests.note(stages)
                    self._requests.hand(outputs, encoded)
                case messages.Statistics() | messages.AdapterTable():
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

    async def generate(
        self, request: GenerateRequest, record: RequestRecord
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """Run a request; yields whatever has arrived since the last time.

        Ends when every choice has finished. Closing the iterator earlier aborts the request. An
        error of the engine is raised. If the request is traced, `record` gets the stages inside
        the engine.
        """
        with self._requests.generating(request, record) as here:
            try:
                self._send(messages.Generate(request, record.trace is not None))
                while here.left:
                    yield await here.take()
            finally:
                if here.left:
                    self.abort([request.request_id])

    async def encode(self, request: EncodeRequest, record: RequestRecord) -> list[EncodeOutput]:
        """Encode items; one output each, in the order of `request.items`. `record` as of
        `generate`."""
        with self._requests.encoding(request, record) as here:
            try:
                self._send(messages.Encode(request, record.trace is not None))
                await here.finish()
            finally:
                if here.left:
                    self.abort([request.request_id])
        return [here.outputs[item.mm_hash] for item in request.items]

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> None:
        """Stop requests, whose choices end with the reason "abort", or one choice of each, of which
        nothing more is said."""
        names = list(request_ids)
        with contextlib.suppress(Unavailable):
            self._send(messages.Abort(names, index))
        for name in names if index is None else ():
            self._requests.abort(name)

    def reset_caches(self, *, prefix: bool = False, encoder: bool = False) -> None:
        self._send(messages.ResetCaches(prefix, encoder))

    def set_log_level(self, level: str) -> None:
        """Of the engine's process; `NotServing` without one."""
        self._send(messages.SetLogLevel(level))

    def profile(self, path: str = "") -> None:
        """Begin a trace of the engine's steps, or end it and write it to `path`."""
        self._send(messages.Profile(path))

    async def statistics(
        self,
        *,
        check: bool = False,
        keys_since: int | None = None,
        awaited: bool = False,
        timeout_s: float = _QUERY_S,
    ) -> messages.Statistics:
        """A snapshot of the engine; see `messages.Query`. `Unavailable` if it does not answer."""
        answer = await self._asked(
            lambda number: messages.Query(number, check, keys_since, awaited), timeout_s
        )
        assert isinstance(answer, messages.Statistics)
        return answer

    async def load_adapter(self, name: str, folder: str) -> dict[str, str]:
        """Revisions of all LoRA adapters by name, this one among them; `InvalidRequest` says why it
        cannot be loaded. The engine makes no step meanwhile."""
        return await self._changed_adapters(lambda n: messages.LoadAdapter(n, name, folder))

    async def unload_adapter(self, name: str) -> dict[str, str]:
        """As `load_adapter`, without this one; `ModelNotFound` if there is none of this name."""
        return await self._changed_adapters(lambda n: messages.UnloadAdapter(n, name))

    async def _changed_adapters(self, command: Callable[[int], messages.Command]) -> dict[str, str]:
        answer = await self._asked(command, _LOAD_S)
        assert isinstance(answer, messages.AdapterTable)
        if answer.error is not None:
            raise from_info(answer.error)
        return answer.adapters

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
        if self._process.returncode is None:
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
        self._remove_directory()

    def _remove_directory(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
