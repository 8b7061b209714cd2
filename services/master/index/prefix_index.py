"""Who holds what: key → set of slots. A slot is a small number of one worker.

A block costs its key, its place in one dictionary, 8 bytes for each holder and a set that it shares
with blocks that came with it (`holder_sets`). A lookup of n keys costs n dictionary reads; sets are
compared only where they change along the prompt.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Generic, TypeVar

from services.master.index.holder_sets import contains, mask_of, only, with_slot, without_slot
from services.master.index.prefix_runs import Run, runs_of, walk

K = TypeVar("K", bound=Hashable)
KEY_TYPE = "Q"  # of block keys: 64 bits
_LOG_SLACK = 64
_SHARED_SETS = 4096


@dataclass(slots=True)
class _Holding(Generic[K]):
    """What one slot holds. `alone`: the set of this slot only, shared by all that it holds alone.
    `log`: the keys in the order they came, with some that have gone since. `count`: of its keys."""

    alone: int
    log: MutableSequence[K]
    count: int = 0


class HolderIndex(Generic[K]):
    """`max_entries` bounds the distinct keys; what does not fit is counted in `refused`. `new_log`
    makes the list of what a slot got. `_shared`: sets made lately, so that the blocks of one prompt
    share theirs although they come in several events. `_slots`: a bit for each in `_holdings`."""

    def __init__(self, max_entries: int, new_log: Callable[[], MutableSequence[K]] = list) -> None:
        self.max_entries = max_entries
        self.refused = 0
        self.new_log = new_log
        self._sets: dict[K, int] = {}
        self._holdings: dict[int, _Holding[K]] = {}
        self._shared: dict[int, int] = {}
        self._slots = 0

    def __len__(self) -> int:
        return len(self._sets)

    def count(self, slot: int) -> int:
        """Keys that a slot holds."""
        holding = self._holdings.get(slot)
        return 0 if holding is None else holding.count

    def keys(self, slot: int) -> list[K]:
        """What a slot holds, in the order it came."""
        holding = self._holdings.get(slot)
        return [] if holding is None else self._live(slot, holding)

    def _live(self, slot: int, holding: _Holding[K]) -> list[K]:
        get, held = self._sets.get, {0: False}
        live = []
        # Once each: a key that went and came again stands there twice.
        for key in dict.fromkeys(holding.log):
            code = get(key, 0)
            holds = held.get(code)
            if holds is None:
                holds = held[code] = contains(code, slot)
            if holds:
                live.append(key)
        return live

    def holders(self, key: K) -> int:
        """The set of slots that hold `key`, as a bit mask."""
        return mask_of(self._sets.get(key, 0))

    def add(self, slot: int, keys: Iterable[K]) -> None:
        """`slot` holds `keys`; those it held already change nothing."""
        holding = self._holding(slot)
        # Blocks of one event mostly have the same holders: `known` has what becomes of each set.
        sets, log, known = self._sets, holding.log, {0: holding.alone}
        shared = self._shared
        before, room = len(log), self.max_entries - len(sets)
        for key in keys:
            old = sets.get(key, 0)
            new = known.get(old)
            if new is None:
                new = with_slot(old, slot)
                new = known[old] = shared.setdefault(new, new)
            if new == old:
                continue
            if not old:
                if room <= 0:
                    self.refused += 1
                    continue
                room -= 1
            sets[key] = new
            log.append(key)
        holding.count += len(log) - before
        self._compact(slot, holding)

    def _holding(self, slot: int) -> _Holding[K]:
        found = self._holdings.get(slot)
        if found is None:
            found = self._holdings[slot] = _Holding(only(slot), self.new_log())
            self._slots |= 1 << slot
        return found

    def remove(self, slot: int, keys: Iterable[K]) -> None:
        """`slot` holds `keys` no more; those it did not hold change nothing."""
        holding = self._holdings.get(slot)
        if holding is None:
            return
        # The log keeps them until it is compacted: to take one out would mean to search for it.
        sets, known, gone = self._sets, {0: 0, holding.alone: 0}, 0
        shared = self._shared
        for key in keys:
            old = sets.get(key, 0)
            new = known.get(old)
            if new is None:
                new = without_slot(old, slot)
                new = known[old] = shared.setdefault(new, new)
            if new == old:
                continue
            gone += 1
            if new:
                sets[key] = new
            else:
                del sets[key]
        holding.count -= gone
        self._compact(slot, holding)

    def drop(self, slot: int) -> None:
        """`slot` holds nothing; costs as much as it held."""
        holding = self._holdings.get(slot)
        if holding is not None:
            # Without its log: `remove` would compact that at its end, for nothing.
            log, holding.log = holding.log, self.new_log()
            self.remove(slot, log)
            del self._holdings[slot]
            self._slots ^= 1 << slot

    def _compact(self, slot: int, holding: _Holding[K]) -> None:
        """Keep the log of what a slot got within twice of what it holds, and what is shared few."""
        if len(self._shared) > _SHARED_SETS:
            # Blocks keep the sets that they have: only later ones do not share them.
            self._shared.clear()
        if len(holding.log) > 2 * holding.count + _LOG_SLACK:
            live, holding.log = self._live(slot, holding), self.new_log()
            holding.log.extend(live)

    def match(self, keys: Sequence[K]) -> list[Run]:
        """Longest prefixes: [(slots, n)], those slots hold the first n > 0 keys and not the next.

        Slots that do not hold the first key are left out.
        """
        return runs_of(map(self._sets.get, keys))

    def further(
        self, runs: Sequence[Run], others: Sequence[HolderIndex[K]], keys: Sequence[K]
    ) -> list[Run]:
        """`runs` of these keys, as `match` gives them, with the keys that come next where a slot
        may hold one here or in any of `others`. Costs nothing for slots that `others` do not know,
        and for the others what lies between the end of their run and their first missing key."""
        below = reduce(or_, (other._slots for other in others))
        tables = [self._sets, *(other._sets for other in others)]
        walking = below & ~reduce(or_, (mask for mask, _ in runs), 0)
        found: list[Run] = []
        begin = 0
        for mask, end in (*runs, (0, len(keys))):
            if walking:
                ended, walking = walk(walking, tables, keys[begin:end], begin)
                found += ended
            if stays := mask & ~below:
                found.append((stays, end))
            walking |= mask & below
            begin = end
        if walking and keys:
            found.append((walking, len(keys)))
        return found


def block_index(max_entries: int) -> HolderIndex[int]:
    """Of block keys, which are of 64 bits each: their logs are plain memory."""
    return HolderIndex(max_entries, lambda: array(KEY_TYPE))
