"""Whether a process lacks what it needs for another connection."""

from __future__ import annotations

import errno
import os
import socket

_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})


def is_own_shortage(error: BaseException | None) -> bool:
    """Whether a call failed because this process or machine has no files, memory or ports left."""
    if isinstance(error, socket.gaierror):
        # A resolver that cannot open its files or a socket says that the name is unknown.
        return error.errno == socket.EAI_MEMORY or not _can_open()
    return isinstance(error, OSError) and error.errno in _SHORT


def _can_open() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True
