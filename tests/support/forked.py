"""Services forked from a process that has imported everything.

An engine imports torch and transformers for six seconds of processor time, and the tests start well
over a hundred of them: most of a run. Here a service is forked from a server that has done so once
(tests/support/fork_server.py) and then runs the same `__main__`. Its engine is forked beside it,
before it runs, as its own child on a pipe, just as `EngineClient` would have started it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.fork_server import NUMBER, listening, received

ENGINE = "services.engine.process"
SERVER = "TRIPTYCH_TESTS_FORK_SERVER"
"""The environment variable with the path of a server's socket; without it a server is started."""
_START_S = 120.0  # until a server has imported everything and forked
_WITH_ENGINE = (
    "services.encoder", "services.prefill", "services.decode", "services.pdfusion",
    "services.pdfusion.any",
)  # fmt: skip


class Forked:
    """A process that runs `target`, which pickle can name, with copies of the descriptors and the
    arguments; as `subprocess.Popen` shows it, as far as tests use that. It gets SIGTERM when this
    object or this process ends. `OSError` or `EOFError` if its server is gone or stands still."""

    def __init__(
        self, target: Callable[..., object], *arguments: Any, descriptors: Sequence[int] = ()
    ) -> None:
        self._exitcode: int | None = None
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(server())
        self._server.settimeout(_START_S)
        asked = pickle.dumps((target, arguments))
        socket.send_fds(self._server, [NUMBER.pack(len(asked))], list(descriptors))
        self._server.sendall(asked)
        self.pid = self._number()

    def poll(self) -> int | None:
        if self._exitcode is None and select.select([self._server], [], [], 0)[0]:
            self._exitcode = self._number()
            self._server.close()
        return self._exitcode

    def wait(self, timeout: float | None = None) -> int:
        if self._exitcode is None:
            select.select([self._server], [], [], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        number: int = NUMBER.unpack(received(self._server, NUMBER.size))[0]
        return number


def server() -> str:
    """The path of the socket of the server that this process has others forked by."""
    return os.environ.get(SERVER) or _started()[0]


@functools.cache
def _started() -> tuple[str, subprocess.Popen[bytes]]:
    """A server of this process alone, which ends with it: the path of its socket, and the server.
    Clients can connect before it has imported anything."""
    path = str(Path(tempfile.mkdtemp(prefix="forks-"), "socket"))
    with listening(path) as listener:
        command = [sys.executable, "-m", "tests.support.fork_server", str(listener.fileno())]
        return path, subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])


class Service(Forked):
    """`python -m module arguments`; `stdout` has what it writes to either output."""

    def __init__(self, module: str, arguments: Sequence[str], env: dict[str, str]) -> None:
        read_end, write_end = os.pipe()
        self.stdout = os.fdopen(read_end, errors="replace")
        super().__init__(_serve, module, list(arguments), env, descriptors=[write_end])
        os.close(write_end)


class EngineProcess(Forked):
    """`python -m services.engine.process`; `stdin` is the worker's end of its pipe."""

    def __init__(self) -> None:
        read_end, write_end = os.pipe()
        self.stdin = os.fdopen(write_end, "wb", buffering=0)
        super().__init__(_be_engine, descriptors=[read_end])
        os.close(read_end)


def _serve(output: int, module: str, arguments: list[str], env: dict[str, str]) -> None:
    """In the forked process: become the service."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(env)
    # An interpreter reads PYTHONPATH when it starts, which this one did before.
    sys.path[1:1] = [one for one in env.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.argv = [module, *arguments]
    if module in _WITH_ENGINE:
        asyncio.create_subprocess_exec = _Engine().given  # type: ignore[assignment]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class _Engine:
    """The engine process of a worker that is about to run, waiting for its first line; as
    `asyncio.subprocess.Process` shows it, as far as `EngineClient` uses that."""

    def __init__(self) -> None:
        read_end, write_end = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(write_end)
            _be_engine(read_end)
        os.close(read_end)
        self.stdin = _Pipe(write_end)
        self.returncode: int | None = None
        self._ended: asyncio.Future[int] | None = None

    async def given(self, *command: str, **_: Any) -> _Engine:
        """In place of `asyncio.create_subprocess_exec`."""
        assert command == (sys.executable, "-m", ENGINE)
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        watch = os.pidfd_open(self.pid)
        loop.add_reader(watch, self._over, loop, watch)
        return self

    def _over(self, loop: asyncio.AbstractEventLoop, watch: int) -> None:
        loop.remove_reader(watch)
        os.close(watch)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        assert self._ended is not None
        self._ended.set_result(self.returncode)

    async def wait(self) -> int:
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class _Pipe:
    """The first line is short: it fits into the pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        assert os.write(self._descriptor, data) == len(data)

    async def drain(self) -> None:
        pass


def _be_engine(stdin: int) -> None:
    """Never returns. A worker that ends before it has started its engine closes the pipe."""
    try:
        os.dup2(stdin, 0)
        os.close(stdin)
        poll = select.poll()
        poll.register(0, select.POLLIN)
        if not poll.poll()[0][1] & select.POLLIN:
            os._exit(0)
        sys.stdin = os.fdopen(0, closefd=False)
        import torch

        from services.engine.process import main

        if "OMP_NUM_THREADS" in os.environ:  # which was read when torch was imported
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        status = main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def killed(work: Callable[[Path], None], root: Path) -> None:
    """Let a process work until it kills itself: nothing of it is cleaned up."""
    assert Forked(work, root).wait(60) == -signal.SIGKILL


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())
