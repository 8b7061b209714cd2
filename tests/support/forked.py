"""Services forked from a process that has imported everything.

An engine imports torch and transformers for six seconds of processor time, and the tests start well
over a hundred of them: most of a run. Here a service is forked from a server that has done so once
(multiprocessing's forkserver) and then runs the same `__main__`. Its engine is forked beside it,
before it runs, as its own child on a pipe, just as `EngineClient` would have started it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

ENGINE = "services.engine.process"
_WITH_ENGINE = (
    "services.encoder", "services.prefill", "services.decode", "services.pdfusion",
    "services.pdfusion.any",
)  # fmt: skip
_PRELOAD = (ENGINE, "proxy.__main__", "services.worker.main", "services.master.__main__",
            "services.mock.main", "tests.support.preloaded", "tests.support.forked")  # fmt: skip


def context() -> ForkServerContext:
    """Where processes are forked that have all imports done."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(_PRELOAD))
    return found


def handed(descriptor: int) -> Any:
    """An argument for a forked process, where `detach` gives its own copy of the descriptor."""
    return context().reducer.DupFd(descriptor)  # type: ignore[attr-defined]


class Forked:
    """A process that runs `target`, as `subprocess.Popen` shows it, as far as tests use that."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self._process = context().Process(target=target, args=arguments, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Service(Forked):
    """`python -m module arguments`; `stdout` has what it writes to either output."""

    def __init__(self, module: str, arguments: Sequence[str], env: dict[str, str]) -> None:
        read_end, write_end = os.pipe()
        self.stdout = os.fdopen(read_end, errors="replace")
        super().__init__(_serve, handed(write_end), module, list(arguments), env)
        os.close(write_end)


class EngineProcess(Forked):
    """`python -m services.engine.process`; `stdin` is the worker's end of its pipe."""

    def __init__(self) -> None:
        read_end, write_end = os.pipe()
        self.stdin = os.fdopen(write_end, "wb", buffering=0)
        super().__init__(_engine, handed(read_end))
        os.close(read_end)


def _engine(stdin: Any) -> None:
    """In the forked process: become the engine."""
    _be_engine(stdin.detach())


def _serve(output: Any, module: str, arguments: list[str], env: dict[str, str]) -> None:
    """In the forked process: become the service."""
    descriptor = output.detach()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
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
    process = context().Process(target=work, args=(root,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())
