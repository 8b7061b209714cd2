"""Which instances that write to a shared folder are alive, so that what dead ones left can be taken
over."""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

LIVE = ".live-"
"""How the files begin that say who lives."""


class Owner:
    """This instance among the writers of `root`: a file that stays locked while it lives."""

    def __init__(self, root: Path) -> None:
        self.name = uuid.uuid4().hex
        self._root = root
        self._path = root / f"{LIVE}{self.name}"
        self._file: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def alive(self, name: str) -> bool:
        """Whether the instance of that name lives; the file of a dead one is removed."""
        path = self._root / f"{LIVE}{name}"
        try:
            file = os.open(path, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        path.unlink(missing_ok=True)
        return False

    def close(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None
