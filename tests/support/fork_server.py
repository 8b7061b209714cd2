"""A process that has imported everything forks others, which then have it at once.

`python -m tests.support.fork_server DESCRIPTOR` serves the listening socket that it has inherited,
and ends with its standard input. A client connects once for each process that it wants.
"""

import contextlib
import gc
import importlib
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMBER = struct.Struct("<i")  # a pid, an exit status, a number of bytes
PRELOAD = (
    "services.engine.process", "proxy.__main__", "services.worker.main", "services.master.__main__",
    "services.mock.main", "tests.support.preloaded", "tests.support.forked",
)  # fmt: skip
TRANSPORTS = "tests.support.preloaded_transports"
_MAX_DESCRIPTORS = 8
_WAITING = 128  # clients, while everything is imported


@dataclass
class _Child:
    """A process that runs. `ends` is readable once it has ended; `client` has been told its pid,
    waits for its exit status, and wants it to end if it closes the connection before."""

    pid: int
    ends: int
    client: socket.socket


class _Server:
    def __init__(self, listener: socket.socket, until: int) -> None:
        self._listener = listener
        self._until = until
        self._children: dict[int, _Child] = {}  # by both of its descriptors
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(until, select.POLLIN)

    def run(self) -> None:
        # One event at a time: a descriptor that one closes may be another's before the next.
        while (descriptor := self._poll.poll()[0][0]) != self._until:
            if descriptor == self._listener.fileno():
                self._fork()
            elif descriptor == (child := self._children[descriptor]).ends:
                self._over(child)
            else:
                self._unwanted(child)
        for descriptor, child in self._children.items():
            if descriptor == child.ends:
                os.kill(child.pid, signal.SIGTERM)

    def _fork(self) -> None:
        client, _ = self._listener.accept()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            _become(client, [self._listener.fileno(), self._until, *self._children])
        child = _Child(pid, os.pidfd_open(pid), client)
        self._children |= {child.ends: child, client.fileno(): child}
        self._poll.register(child.ends, select.POLLIN)
        self._poll.register(client, select.POLLRDHUP)  # what comes is for the child to read

    def _over(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        with contextlib.suppress(OSError):  # the client may be gone
            child.client.send(NUMBER.pack(os.waitstatus_to_exitcode(status)))
        for descriptor in (child.ends, child.client.fileno()):
            if self._children.pop(descriptor, None) is not None:
                self._poll.unregister(descriptor)
        os.close(child.ends)
        child.client.close()

    def _unwanted(self, child: _Child) -> None:
        del self._children[child.client.fileno()]
        self._poll.unregister(child.client)
        os.kill(child.pid, signal.SIGTERM)


def serve(listener: socket.socket, until: int) -> None:
    """Fork what is asked for until the descriptor `until` is readable; what runs then is told to
    end. Returns in this process alone."""
    _Server(listener, until).run()


def _become(client: socket.socket, inherited: Sequence[int]) -> None:
    """In the forked process: run what is asked for and end."""
    status = 1
    try:
        for descriptor in inherited:
            os.close(descriptor)
        nothing = os.open(os.devnull, os.O_RDONLY)
        if nothing:  # standard input is the server's
            os.dup2(nothing, 0)
            os.close(nothing)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        target, arguments, descriptors = _asked(client)
        target(*descriptors, *arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _asked(client: socket.socket) -> tuple[Callable[..., object], tuple[Any, ...], list[int]]:
    with client:
        client.sendall(NUMBER.pack(os.getpid()))
        head, descriptors, _, _ = socket.recv_fds(client, NUMBER.size, _MAX_DESCRIPTORS)
        target, arguments = pickle.loads(received(client, NUMBER.unpack(head)[0]))
    return target, arguments, descriptors


def received(connection: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes. `EOFError` if the other end is gone before."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the other end of the connection is gone")
        data += more
    return data


def listening(path: str) -> socket.socket:
    """Bind a socket to `path` and listen. The caller keeps other users out of the folder, since a
    client can run any code."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(_WAITING)
    return listener


def preload(*more: str) -> None:
    """Import what services would, and let no collector look at it again."""
    for name in (*PRELOAD, *more):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _listener = socket.socket(fileno=int(sys.argv[1]))
    preload(TRANSPORTS)
    serve(_listener, sys.stdin.fileno())
    shutil.rmtree(Path(_listener.getsockname()).parent)
