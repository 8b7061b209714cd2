"""Folders that only this user can write to, so that every file in them comes from this user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from protocol.errors import ConfigError

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
