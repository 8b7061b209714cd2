"""File descriptors handed from process to process over Unix sockets in a folder.

The file system's permissions on that folder say who may ask. A socket is bound under another name
and renamed once it listens, so that one that refuses is always one whose owner has died.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from connectors.owners import make_private
from protocol.errors import ConfigError, TransferError

logger = logging.getLogger(__name__)
PRIVATE = "set TRIPTYCH_NAMESPACE to another name"
"""What to do about a folder that is not this user's alone."""
_LOOK_S = 1.0  # how often it is looked whether a name is still there
_BACKLOG = 128
_PAUSE_S = 0.05  # before accepting again when this process has no descriptors left
_TIMEOUT_S = 5.0


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of `path` that fits the 107 bytes which a Unix socket's address may have."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class DescriptorServer:
    """Gives `descriptor`, which it owns, to every process that connects to the socket at `path`. It
    does so in a thread, because peers must not wait for the end of a long engine step. A socket
    whose name is removed is made again."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._closed = False
        self._problem = ""
        try:
            self._listener = _listen(path)
        except ConfigError:
            os.close(descriptor)
            raise
        self._ended = os.eventfd(0)
        self._thread = threading.Thread(target=self._serve, name="descriptors", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closed:
            # Not `accept` with a timeout: not every kernel wakes it when its socket is shut down.
            waiting = select.poll()
            for readable in (self._listener, self._ended):
                waiting.register(readable, select.POLLIN)
            if not waiting.poll(_LOOK_S * 1e3):
                self._renew()
                continue
            try:
                peer, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    time.sleep(_PAUSE_S)
                    continue
                return
            with peer, contextlib.suppress(OSError):
                peer.setblocking(False)  # a fresh connection takes one byte at once, or is broken
                socket.send_fds(peer, [b"\0"], [self._descriptor])

    def _renew(self) -> None:
        """When a user logs out, systemd-logind may remove all that is the user's in /dev/shm."""
        if self._closed or self.path.exists():
            return
        try:
            make_private(self.path.parent, PRIVATE)
            renewed = _listen(self.path)
        except ConfigError as error:
            if error.message != self._problem:
                logger.error("the socket %s was removed: %s", self.path, error.message)
            self._problem = error.message
            return
        logger.warning("the socket %s was removed: it is made again", self.path)
        self._listener.close()
        self._listener, self._problem = renewed, ""

    def close(self) -> None:
        self._closed = True
        # The name goes first: a socket that is there and refuses counts as that of a dead process.
        self.path.unlink(missing_ok=True)
        os.eventfd_write(self._ended, 1)
        self._thread.join()
        self.path.unlink(missing_ok=True)  # it may have been made again meanwhile
        self._listener.close()
        os.close(self._ended)
        os.close(self._descriptor)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = path.with_name(f".{path.name}")
    try:
        with _short(temporary) as name:
            listener.bind(name)
        temporary.chmod(0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        temporary.rename(path)
    except OSError as error:
        listener.close()
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"shm: cannot listen at {path}: {error.strerror}") from None
    return listener


class DescriptorRequest:
    """Asks the owner of the socket at `path` for its descriptor, without waiting."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._deadline = time.monotonic() + _TIMEOUT_S
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise TransferError(
                f"shm: cannot open a socket to ask for region {path.name[:80]}: {error}"
            ) from None
        self._connected = False

    def fileno(self) -> int:
        """Readable when `poll` has something to do; -1 once it has ended."""
        return self._socket.fileno()

    def poll(self) -> int | None:
        """The descriptor, once, for the caller to close; None before that and after it.

        `TransferError` if it will not come: no process listens at `path`, or the owner has ended.
        """
        if self.settled:
            return None
        try:
            if not self._connected:
                self._connect()
            descriptor = self._receive()
            if descriptor is None and time.monotonic() > self._deadline:
                raise TransferError(f"the owner did not answer within {_TIMEOUT_S:.0f} s")
        # ValueError: a peer gave the name, which may hold a NUL.
        except (TransferError, OSError, ValueError) as error:
            self.cancel()
            raise TransferError(f"shm: {self._path.name[:80]}: {error}") from None
        if descriptor is not None:
            self.cancel()
        return descriptor

    def _connect(self) -> None:
        with contextlib.suppress(BlockingIOError), _short(self._path) as name:
            self._socket.connect(name)  # would block while the owner's backlog is full
            self._connected = True

    def _receive(self) -> int | None:
        if not self._connected:
            return None
        try:
            _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        except BlockingIOError:
            return None
        if not descriptors:
            raise TransferError("the owner has ended, or this process has too many open files")
        # What comes this way is inherited by child processes, unlike what Python opens.
        os.set_inheritable(descriptors[0], False)
        return descriptors[0]

    def cancel(self) -> None:
        """Idempotent."""
        self._socket.close()

    @property
    def settled(self) -> bool:
        return self._socket.fileno() < 0


def sweep_sockets(folder: Path, pattern: str) -> int:
    """Remove the sockets of dead processes among those of a pattern; returns how many."""
    removed = 0
    for path in folder.glob(pattern):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
        ):
            probe.setblocking(False)
            try:
                with _short(path) as name:
                    probe.connect(name)
            # A full backlog is another error: it has an owner that lives.
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                removed += 1
    return removed
