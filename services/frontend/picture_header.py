"""What the header of a picture says, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass

MOST_PARTS = 20_000
"""Chunks, segments or blocks of a file that are looked at."""
_SWAPPED = (5, 6, 7, 8)


class BadHeader(ValueError):
    """Not a picture that can be decoded here; the text says why."""


@dataclass(frozen=True)
class Header:
    """`form` as Pillow names it. `width` and `height` in pixels as they are stored; `orientation`
    as of EXIF, 1 to 8."""

    form: str
    width: int
    height: int
    orientation: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the upright picture."""
        if self.orientation in _SWAPPED:
            return self.height, self.width
        return self.width, self.height
