"""Which version of this package runs."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """ "unknown" where the code runs from a folder and nothing was installed."""
    try:
        return importlib.metadata.version("triptych")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
