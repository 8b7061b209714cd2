"""Stop strings found in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.frontend.parsing.source import overlap


@dataclass(frozen=True)
class Scanned:
    """`text` may be sent. `stop` is the stop string that ends the text, None if it goes on."""

    text: str
    stop: str | None = None


class StopScanner:
    """Lets text through up to the first stop string, as if it came one character at a time.

    The first stop string to be complete counts, the longest if several end together. Only text that
    may be the beginning of one is held back.
    """

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        """`include`: the stop string itself is part of the text."""
        self._stops = stops
        self._include = include
        self._held = ""

    def push(self, text: str, *, armed: bool = True) -> Scanned:
        """Add text. A stop string counts if its last character is in text that came `armed`."""
        if not self._stops or not text:
            return Scanned(text)
        known = len(self._held)
        text = self._held + text
        found = self._first(text, known) if armed else None
        if found is not None:
            end, stop = found
            self._held = ""
            return Scanned(text[: end if self._include else end - len(stop)], stop)
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return Scanned(text[: len(text) - keep])

    def flush(self) -> str:
        """What is held back; no more text comes."""
        text, self._held = self._held, ""
        return text

    def _first(self, text: str, known: int) -> tuple[int, str] | None:
        """(end, stop string) of the first one that ends after `known` characters."""
        best: tuple[int, str] | None = None
        for stop in self._stops:
            # From where it could end behind what was held: that part was searched before.
            start = text.find(stop, max(0, known + 1 - len(stop)))
            if start < 0:
                continue
            end = start + len(stop)
            if best is None or (end, -len(stop)) < (best[0], -len(best[1])):
                best = end, stop
        return best

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        return max(overlap(text, stop) for stop in self._stops)
