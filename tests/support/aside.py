"""Work in a process of its own, forked from one that has imported everything."""

import ctypes
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.forked import Forked

T = TypeVar("T")
_LIMIT_S = 120.0
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_NOT_ALLOWED = (errno.EPERM, errno.ENOSPC, errno.ENOSYS)


def aside(work: Callable[..., T], *arguments: Any) -> T:
    """Run `work` in such a process and return its result. `AssertionError`, with the traceback, if
    `work` raises, or if nothing comes back within two minutes."""
    reader, writer = Pipe(duplex=False)
    process = Forked(_send, work, arguments, descriptors=[writer.fileno()])
    writer.close()
    try:
        assert reader.poll(_LIMIT_S), "the process has not answered"
        found, failed = reader.recv()
    finally:
        process.kill()
        process.wait(_LIMIT_S)
        reader.close()
    assert not failed, failed
    returned: T = found
    return returned


def _send(descriptor: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    writer = Connection(descriptor, readable=False)
    try:
        writer.send((work(*arguments), ""))
    except BaseException:
        writer.send((None, traceback.format_exc()))


def import_without(module: str, missing: str) -> bool:
    """Import a module of services again, in a process in which `missing` cannot be imported, and
    return whether that worked. Only for `aside`: it changes what this process has imported."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("services", missing):
            del sys.modules[name]
    sys.modules[missing] = None  # type: ignore[assignment]
    importlib.import_module(module)
    return module in sys.modules and sys.modules[missing] is None


def on_small_disk(folder: Path, size: str, work: Callable[..., T], *arguments: Any) -> T:
    """Run `work` in a process of its own and return its result. That process sees an empty file
    system of `size`, as in 64k, in the folder; no other process does. The test is skipped if the
    system does not allow the mount."""
    found = aside(_on_small_disk, folder, size, work, arguments)
    if found is None:
        pytest.skip("no mount of our own here")
    returned: T = found[0]
    return returned


def _on_small_disk(
    folder: Path, size: str, work: Callable[..., T], arguments: tuple[Any, ...]
) -> tuple[T] | None:
    return (work(*arguments),) if _mounted(folder, size) else None


def _mounted(folder: Path, size: str) -> bool:
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER | _NEW_MOUNTS):
        # EINVAL would be a second thread in this process, a mistake of ours.
        assert ctypes.get_errno() in _NOT_ALLOWED, os.strerror(ctypes.get_errno())
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError:
        return False
    given = (text.encode() for text in ("none", str(folder), "tmpfs"))
    return not libc.mount(*given, ctypes.c_ulong(0), f"size={size}".encode())
