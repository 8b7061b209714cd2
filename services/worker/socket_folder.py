"""The folder of the sockets between a worker and its engine."""

from __future__ import annotations

import os
from pathlib import Path

from connectors.owners import OwnedFolder, make_private
from protocol.errors import ConfigError

_LONGEST = 107  # characters of a socket's name, as Linux takes it


def socket_folder(temporary: Path) -> OwnedFolder:
    """A folder for the sockets between a worker and its engine, which other users cannot enter. A
    worker that is killed leaves its own until the next one starts."""
    root = temporary / f"triptych-{os.getuid()}"
    make_private(root, "set TMPDIR to a folder of your own")
    try:
        folder = OwnedFolder(root, "s")
    except OSError as error:
        raise ConfigError(f"no sockets can be made in {root}: {error.strerror}") from None
    if len(str(folder.path / "commands")) > _LONGEST:
        folder.close()
        raise ConfigError(
            f"{temporary} is too long a name for sockets: set TMPDIR to a shorter one"
        )
    return folder
