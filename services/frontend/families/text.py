"""Models that take text only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import InvalidRequest
from services.frontend.families.base import Extent, Family
from services.frontend.pixel_bounds import PixelBounds


class Text(Family):
    def __init__(self) -> None:
        self.placeholders = {}

    @property
    def processor(self) -> dict[str, Any]:
        return {}

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        raise InvalidRequest("this model takes no pictures")

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        raise InvalidRequest("this model takes no pictures")
