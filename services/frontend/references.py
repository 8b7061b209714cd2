"""Pictures seen before, so that a client may refer to one by its uuid instead of sending it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from services.frontend.families import Extent


@dataclass(frozen=True)
class KnownMedia:
    mm_hash: str
    extent: Extent


class ReferenceBook:
    """The last `capacity` pictures by (cache salt, uuid): one tenant cannot name another's."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: OrderedDict[tuple[str, str], KnownMedia] = OrderedDict()

    def remember(self, salt: str, uuid: str, media: KnownMedia) -> None:
        self._known[salt, uuid] = media
        self._known.move_to_end((salt, uuid))
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def find(self, salt: str, uuid: str) -> KnownMedia | None:
        media = self._known.get((salt, uuid))
        if media is not None:
            self._known.move_to_end((salt, uuid))
        return media
