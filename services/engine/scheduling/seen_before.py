"""Names that come again."""

from __future__ import annotations


class SeenBefore:
    """`count`: how often a name was added that is among the last `most` added."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, None] = {}  # the one added last is the last
        self.count = 0

    def add(self, name: str) -> None:
        if name in self._names:
            self.count += 1
            del self._names[name]
        elif len(self._names) >= self._most:
            del self._names[next(iter(self._names))]
        self._names[name] = None
