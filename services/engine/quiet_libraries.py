"""What libraries of an engine write at its start, kept out of the worker's log."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Transformers warns of what a worker does on purpose (parts of a model, files read once), and draws
# a bar while it reads weights. Both are read where the library is imported.
_QUIET: Mapping[str, str] = MappingProxyType(
    {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
)


def quieted(given: Mapping[str, str]) -> dict[str, str]:
    """Variables for an engine's process: those given, which win."""
    return {**_QUIET, **given}
