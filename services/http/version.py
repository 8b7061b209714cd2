"""Which version of this package runs."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Of the installed package; 'unknown' where the code runs from a folder without one."""
    try:
        return importlib.metadata.version("triptych")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
