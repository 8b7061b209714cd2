"""Changes that no test can tell from the code: a run counts them apart from survivors.

The list is `equivalents.json`: by a module's path, each change as a run prints it, and why it makes
no difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

LIST = Path(__file__).with_name("equivalents.json")


class Equivalents:
    """`known`: by module, reasons by change."""

    def __init__(self, known: dict[str, dict[str, str]]) -> None:
        self._known = known

    @classmethod
    def read(cls, file: Path = LIST) -> Equivalents:
        return cls(json.loads(file.read_text()))

    def holds(self, module: str, change: str) -> bool:
        return change in self._known.get(module, {})

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        """(module, change, reason) of each."""
        for module, changes in self._known.items():
            for change, reason in changes.items():
                yield module, change, reason
