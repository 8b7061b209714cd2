"""Folders that instances share: whether other users can write to them, and which instances live, so
that what dead ones left can be taken over: each keeps a file locked for as long as it lives."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import time
import uuid
from pathlib import Path

from protocol.errors import ConfigError

LIVE = ".live-"
"""How the files begin that say who lives."""
_LOCK_S = 5.0
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_private(folder: Path, remedy: str) -> None:
    """Create `folder` with mode 0700, or make sure that the one that exists is safe to use.

    `ConfigError` if it is a link, belongs to another user, or others may write to it: in a place
    such as /dev/shm another user could have made it first, to hand us memory of their own. The
    error ends with `remedy`, how to use another folder.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(
            f"folder {folder} cannot be created: {error.strerror}: {remedy}"
        ) from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{folder} is not a folder: remove it, or {remedy}")
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{folder} belongs to user {found.st_uid}, this process runs as {os.geteuid()}: "
            f"{remedy}"
        )
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise ConfigError(f"other users can write to {folder}: chmod 700 {folder}")


def create_locked(path: Path) -> int:
    """The descriptor of a new file that is locked until it is closed. `OSError` as of `os.open`.

    Before it is locked, who sweeps takes it for what a dead process left: it is made again then.
    """
    deadline = time.monotonic() + _LOCK_S
    while time.monotonic() < deadline:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A sweep may have removed the name between `open` and `flock`: the lock is on a file
            # then that no other process finds.
            if os.fstat(descriptor).st_nlink:
                return descriptor
        os.close(descriptor)
    raise OSError(errno.ETIMEDOUT, "another process holds its lock")


def locked(path: Path) -> bool:
    """Whether a file's owner lives, or may: the file of a dead one is removed."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        # Another user's, or this process may open no more files: what an owner that may live needs
        # is not for us to remove.
        return True
    try:
        # Shared: two that look at a dead owner's file must not take each other for its owner. It
        # is removed under the lock, so that a new owner of the name notices (`create_locked`).
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:  # locked, or on a file system that cannot tell
        return True
    finally:
        os.close(descriptor)
    return False


def sweep(folder: Path, pattern: str) -> int:
    """Remove the files of dead owners among those of a pattern; returns how many."""
    return sum(not locked(path) for path in folder.glob(pattern))


class Owner:
    """This instance among the writers of `root`. What dead ones were writing is removed when the
    next one starts."""

    def __init__(self, root: Path) -> None:
        self.name = secrets.token_urlsafe(6)  # short: sockets below may have 107 characters
        self._root = root
        self._path = root / f"{LIVE}{self.name}"
        # Locked before this one writes, or removes what dead ones left: others see that it lives.
        self._file: int | None = create_locked(self._path)
        sweep(root, f"{LIVE}*")
        for path in root.glob(".*.*.tmp"):
            if not self.alive(path.name.split(".")[1]):
                remove(path)

    def temporary(self) -> Path:
        """A name in `root` for what gets its own one once it is complete."""
        return self._root / f".{self.name}.{uuid.uuid4().hex}.tmp"

    def alive(self, name: str) -> bool:
        """Whether the instance of that name lives."""
        return locked(self._root / f"{LIVE}{name}")

    def alone(self) -> bool:
        """Whether no other instance lives."""
        sweep(self._root, f"{LIVE}*")
        return all(path == self._path for path in self._root.glob(f"{LIVE}*"))

    def close(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


class OwnedFolder:
    """A folder of this instance in `root`, whose name begins with `prefix`, not with a dot. Those
    of instances that died are removed first. `OSError` if it cannot be made."""

    def __init__(self, root: Path, prefix: str) -> None:
        # Before its folder: what has no living owner is swept by the next instance.
        self._owner = Owner(root)
        for folder in root.glob(f"{prefix}*"):
            if not self._owner.alive(folder.name.removeprefix(prefix)):
                shutil.rmtree(folder, ignore_errors=True)
        self.path = root / f"{prefix}{self._owner.name}"
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove it with what is in it; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        # The lock goes last: until then no other instance sweeps here.
        self._owner.close()


def is_there(path: Path) -> bool:
    """Whether a file or a folder is there. One that cannot be looked at is not: another user's, or
    on storage that fails."""
    try:
        return path.exists()
    except OSError:
        return False


def remove(path: Path) -> None:
    """A file or a folder, if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
