"""Where compiled kernels are kept. The home folder may be read-only, as it often is in a container:
then a folder among the temporary files is used."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from connectors.private_folder import make_private

_VARIABLE = "TRITON_CACHE_DIR"


def ensure_writable() -> None:
    """Point Triton to a private folder for temporary files if its usual one cannot be written to.

    `ConfigError` if that folder belongs to another user. An explicit TRITON_CACHE_DIR is kept.
    """
    if os.environ.get(_VARIABLE) or _can_write(Path.home() / ".triton" / "cache"):
        return
    folder = Path(tempfile.gettempdir()) / f"triptych-{os.getuid()}-triton"
    make_private(folder, f"set {_VARIABLE} to a folder of your own")
    os.environ[_VARIABLE] = str(folder)


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
