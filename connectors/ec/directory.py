"""Where EC producers of one host are found by consumers that were told of none."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from connectors.owners import create_locked, locked
from connectors.private_folder import make_private
from connectors.side_client import Address
from protocol.errors import ConfigError

_PREFIX = "ec-producer-"


class Listing:
    """A producer's address in a folder, for as long as its process lives: a process that
    finds the file without its lock removes it; each looks for such files when it starts."""

    def __init__(self, folder: Path, instance_id: str, address: Address) -> None:
        self._path = folder / f"{_PREFIX}{instance_id}"
        try:
            make_private(folder, "set TRIPTYCH_NAMESPACE to another name")
            producers(folder)
            self._file: int | None = create_locked(self._path)
            os.write(self._file, msgspec.json.encode(address))
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
            if locked(path):
                found.append(msgspec.json.decode(path.read_bytes(), type=tuple[str, int]))
    return found
