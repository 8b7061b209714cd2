"""Where EC producers of one host are found by consumers that were told of none."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from connectors.side_channel import Address
from protocol.errors import ConfigError

_PREFIX = "ec-producer-"


class Listing:
    """A producer's address in a folder, for as long as its process lives: whoever finds the file
    without its lock removes it, and whoever comes looks for such files."""

    def __init__(self, folder: Path, instance_id: str, address: Address) -> None:
        self._path = folder / f"{_PREFIX}{instance_id}"
        hidden = folder / f".{self._path.name}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            producers(folder)
            self._file: int | None = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._file, msgspec.json.encode(address))
            hidden.rename(self._path)
        except OSError as error:
            raise ConfigError(f"cannot announce the EC producer in {folder}: {error}") from None

    def close(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def producers(folder: Path) -> list[Address]:
    """The producers that live, in no order; what dead ones left is removed."""
    found = []
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            address = _read(path)
            if address is not None:
                found.append(address)
    return found


def _read(path: Path) -> Address | None:
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        host, port = msgspec.json.decode(os.read(file, 4096), type=tuple[str, int])
        return host, port
    finally:
        os.close(file)
    path.unlink()
    return None
