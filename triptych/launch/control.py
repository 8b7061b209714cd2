"""How a running `triptych serve` is asked for a rolling restart: a Unix socket beside its logs.

The one who asks sends one JSON line. The answers are JSON lines: what has been done so far, and a
last one that says how it ended.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from protocol.errors import ConfigError

NAME = "serve.sock"
_LONGEST = 100  # of a path, in bytes; the kernel's own limit is a little more
_ASK_S = 2.0
_MAX_LINE = 1 << 16


class Restart(msgspec.Struct):
    """What is asked for: which roles, and how long a worker may take to finish its requests."""

    roles: list[str]
    patience_s: float


class Progress(msgspec.Struct):
    """A line of the answer. `status`: how it ended, None before. `silence_s`: how long the next
    line may take to come."""

    line: str = ""
    status: int | None = None
    silence_s: float = 60.0


Answer = Callable[[Progress], None]


class Control:
    """The socket of a stack. `handle` is called by `look`, in the thread that calls `look`."""

    def __init__(self, folder: Path, handle: Callable[[Restart, Answer], None]) -> None:
        """`ConfigError` if another stack has the folder, or its path is too long."""
        self._path = _path_in(folder)
        self._handle = handle
        if _is_answered(self._path):
            raise ConfigError(f"--log-path: another stack that runs has its logs in {folder}")
        # No stack answers there: a killed one has left it, and `bind` takes no path that exists.
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)  # only this user may restart the stack
        try:
            self._socket.bind(str(self._path))
        finally:
            os.umask(before)
        self._socket.listen(1)
        self._socket.setblocking(False)

    def look(self) -> None:
        """Do what has been asked for, if anything has."""
        try:
            caller, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError):
            return
        with caller:
            caller.settimeout(_ASK_S)
            try:
                # One read is the whole line: `ask` sends it at once, and it is short.
                asked = msgspec.json.decode(caller.recv(_MAX_LINE), type=Restart)
            # Only here: what fails while it is done is no fault of the caller's.
            except (OSError, msgspec.DecodeError):
                return
            self._handle(asked, lambda said: _send(caller, said))

    def close(self) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)


def ask(folder: Path, wanted: Restart) -> Iterator[Progress]:
    """What the stack with its logs in `folder` says while it restarts. `ConfigError` if there is
    none; `OSError` if it ends or falls silent."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_ASK_S)
        try:
            link.connect(str(_path_in(folder)))
        except OSError as error:
            raise ConfigError(
                f"--log-path: no stack that runs has its logs in {folder}: {error.strerror}"
            ) from None
        link.sendall(msgspec.json.encode(wanted) + b"\n")
        yield from _lines(link)


def _lines(link: socket.socket) -> Iterator[Progress]:
    with link.makefile("rb") as answers:
        for line in answers:
            said = msgspec.json.decode(line, type=Progress)
            link.settimeout(said.silence_s)
            yield said


def _send(caller: socket.socket, said: Progress) -> None:
    """The caller may have hung up; the restart goes on."""
    with contextlib.suppress(OSError):
        caller.sendall(msgspec.json.encode(said) + b"\n")


def _path_in(folder: Path) -> Path:
    path = folder / NAME
    if len(os.fsencode(path)) > _LONGEST:
        raise ConfigError(f"--log-path: {folder} is too long a path for the socket {NAME} in it")
    return path


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_ASK_S)
        try:
            link.connect(str(path))
        except OSError:
            return False
        return True
