"""Where compiled kernels are kept. The home folder may be read-only, as it often is in a container:
then a folder among the temporary files is used."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from connectors.private_folder import make_private


def ensure_writable() -> None:
    """Point Triton and Numba to folders that can be written to: in the home folder, or private ones
    among the temporary files.

    `ConfigError` if one of these belongs to another user. A folder that is set by TRITON_CACHE_DIR
    or NUMBA_CACHE_DIR is kept.
    """
    _ensure("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache", "triton")
    _ensure("NUMBA_CACHE_DIR", Path.home() / ".cache" / "triptych" / "numba", "numba")


def _ensure(variable: str, usual: Path, name: str) -> None:
    if os.environ.get(variable):
        return
    folder = usual
    if not _can_write(usual):
        folder = Path(tempfile.gettempdir()) / f"triptych-{os.getuid()}-{name}"
        make_private(folder, f"set {variable} to a folder of your own")
    os.environ[variable] = str(folder)


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
