"""Media seen before, so that a client may refer to one by its uuid instead of sending it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from services.frontend.families import Extent

_Name = tuple[str, str, Hashable]


@dataclass(frozen=True)
class KnownMedia:
    mm_hash: str
    extent: Extent


class ReferenceBook:
    """The last `capacity` items by cache salt, uuid and form: one tenant cannot name another's, and
    a picture of another size is another picture. `form`: the kind, and what becomes of it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: OrderedDict[_Name, KnownMedia] = OrderedDict()

    def remember(self, salt: str, uuid: str, media: KnownMedia, form: Hashable) -> None:
        self._known[salt, uuid, form] = media
        self._known.move_to_end((salt, uuid, form))
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def find(self, salt: str, uuid: str, form: Hashable) -> KnownMedia | None:
        media = self._known.get((salt, uuid, form))
        if media is not None:
            self._known.move_to_end((salt, uuid, form))
        return media
