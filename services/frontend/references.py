"""Pictures seen before, so that a client may refer to one by its uuid instead of sending it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from services.frontend.families import Extent
from services.frontend.pixel_bounds import PixelBounds

_Name = tuple[str, str, PixelBounds | None]


@dataclass(frozen=True)
class KnownMedia:
    mm_hash: str
    extent: Extent


class ReferenceBook:
    """The last `capacity` pictures by cache salt, uuid and pixel bounds: one tenant cannot name
    another's, and a picture of another size is another picture."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: OrderedDict[_Name, KnownMedia] = OrderedDict()

    def remember(
        self, salt: str, uuid: str, media: KnownMedia, bounds: PixelBounds | None = None
    ) -> None:
        self._known[salt, uuid, bounds] = media
        self._known.move_to_end((salt, uuid, bounds))
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def find(self, salt: str, uuid: str, bounds: PixelBounds | None = None) -> KnownMedia | None:
        media = self._known.get((salt, uuid, bounds))
        if media is not None:
            self._known.move_to_end((salt, uuid, bounds))
        return media
