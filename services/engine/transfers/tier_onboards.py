"""KV blocks on their way up: from lower tiers into the pool, for a request that waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from services.engine.scheduling.block_manager import BlockManager
from services.engine.scheduling.request import Request, RequestKey
from services.engine.scheduling.seams import Clock, Meter
from services.engine.transfers.onboard import Onboard, Share, Wait
from services.engine.transfers.tier_offloads import Tier, TierOffloads
from services.membership.events import CacheLog

_UNMEASURED_S = 1.0  # longest wait of an engine that does not know yet how fast it computes
_FRESH = 0.2  # weight of the latest measurement
_FADE = 0.98  # so that a tier that was too slow once is tried again
_TURNS = 16  # requests that wait for others' KV to arrive before theirs is on its way


class TierOnboards:
    """A request waits no longer than it would take to compute what is on its way, by the engine's
    own rates; a block that takes longer to fetch than to compute is left where it is. What is on
    its way takes half of the pool at most, as nothing can take these blocks back. A request that
    would have to wait too long behind it is computed; others wait for their turn."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        offloads: TierOffloads,
        blocks: BlockManager,
        meter: Meter,
        clock: Clock,
        log: CacheLog | None,
    ) -> None:
        self._tiers = tiers
        self._offloads = offloads
        self._blocks = blocks
        self._meter = meter
        self._clock = clock
        self._log = log
        self._under_way: list[Onboard] = []
        self._waits: dict[RequestKey, Wait] = {}
        self.given_up = 0  # requests that have computed their KV after all

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def next_time(self) -> float | None:
        """When the next request will have waited long enough; one that already has, and still
        waits, does so for a slot or for blocks."""
        now = self._clock()
        return min((w.until for w in self._waits.values() if w.until > now), default=None)

    def awaits(
        self, request: Request, keys: Sequence[bytes], matched: Sequence[int], reserved: int
    ) -> bool:
        """Whether a request that could start from the `matched` blocks had better wait: more of
        the blocks that `keys` name are on their way. `reserved` blocks are left to others."""
        wait = self._waits.get(request.key)
        # It waits once for each time that it is queued: what has not come is computed.
        if wait is None and request.looked_below:
            return False
        if wait is not None and self._over(wait):
            del self._waits[request.key]
            return False
        if wait is None or wait.onboard is None:
            wait = self._look(request, keys, matched, reserved)
        if wait is None:
            self._waits.pop(request.key, None)
            return False
        self._waits[request.key] = wait
        return True

    def _over(self, wait: Wait) -> bool:
        if wait.onboard is not None and wait.onboard not in self._under_way:
            return True
        if self._clock() < wait.until:
            return False
        self.given_up += 1
        return True

    def forget(self, request: Request) -> None:
        """A request is gone; what is on its way for it arrives for others."""
        self._waits.pop(request.key, None)

    def _look(
        self, request: Request, keys: Sequence[bytes], matched: Sequence[int], reserved: int
    ) -> Wait | None:
        first, block_s = len(matched), self._compute_s()
        if first >= len(keys):
            request.looked_below = True
            return None
        earlier = self._waits.get(request.key)
        # Another request may have begun to bring the same: both wait for one copy.
        onboard = next((o for o in self._under_way if keys[first] in o.keys), None)
        if onboard is None:
            levels, slow = self._levels_of(keys[first:], block_s)
            room = self._room(matched, reserved)
            if levels and self._under_way:
                wait = self._wait(None, len(levels), block_s, earlier)
                if self._comes_too_late(request, levels, wait.until):
                    return None
                if len(levels) > room or not self._slowest(levels):
                    return wait
            if slow is not None:
                slow.block_s *= _FADE
            onboard = self._begin(request, keys, matched, levels[:room])
            request.looked_below = onboard is not None or not levels
            if onboard is None:
                return None
        request.looked_below = True
        return self._wait(onboard, len(onboard.keys), block_s, earlier)

    def _wait(
        self, onboard: Onboard | None, blocks: int, block_s: float, earlier: Wait | None
    ) -> Wait:
        """As long as it takes to compute so many blocks, from when the request began to wait."""
        longest = block_s * blocks if block_s else _UNMEASURED_S
        return Wait(onboard, blocks, earlier.until if earlier else self._clock() + longest)

    def _comes_too_late(self, request: Request, levels: Sequence[int], until: float) -> bool:
        """Whether blocks of these levels will not be there in time, behind what is on its way and
        what waits for its turn."""
        ahead, turns = sum(len(onboard.blocks) for onboard in self._under_way), 0
        for key, wait in self._waits.items():
            if key == request.key:
                break
            if wait.onboard is None:
                ahead, turns = ahead + wait.blocks, turns + 1
        seconds = (ahead + len(levels)) * self._slowest(levels)
        return turns >= _TURNS or self._clock() + seconds > until

    def _slowest(self, levels: Sequence[int]) -> float:
        """What a block of the slowest of these takes, 0 if none has been measured: then the first
        onboard is alone."""
        return max(self._tiers[level].block_s for level in levels)

    def _room(self, matched: Sequence[int], reserved: int) -> int:
        """Blocks that may be fetched now, of those that are free: while others run, onboards take
        half of the pool at most."""
        free = self._blocks.num_free - sum(map(self._blocks.is_idle, matched)) - reserved
        if reserved or self._under_way:
            taken = sum(len(onboard.blocks) for onboard in self._under_way)
            free = min(free, self._blocks.num_blocks // 2 - taken)
        return max(0, free)

    def _compute_s(self) -> float:
        """What a block of a prompt takes to compute, 0 while it is unknown."""
        return self._meter.rates().prefill_ms_per_token * self._blocks.block_size / 1e3

    def _begin(
        self, request: Request, keys: Sequence[bytes], matched: Sequence[int], levels: list[int]
    ) -> Onboard | None:
        """`levels`: which tiers the blocks after the matched ones come from."""
        if not levels:
            return None
        # First: `allocate` might evict them, and what comes back could not be reached.
        self._blocks.acquire(matched)
        blocks = self._blocks.allocate(len(levels))
        # `_room` has counted them, those that hold the matched prefix left out.
        assert blocks is not None
        first = len(matched)
        wanted = list(keys[first : first + len(levels)])
        onboard = Onboard(request, first, wanted, list(matched), blocks)
        for level in sorted(set(levels)):
            numbers = [n for n, found in enumerate(levels) if found == level]
            onboard.shares.append(self._share(onboard, level, numbers))
        self._under_way.append(onboard)
        return onboard

    def _levels_of(self, keys: Sequence[bytes], compute_s: float) -> tuple[list[int], Tier | None]:
        """Which tier each of the first keys comes from, up to one that is nowhere, or in a tier
        from which it is not worth fetching (the second value)."""
        levels: list[int] = []
        for key in keys:
            level = next((n for n, tier in enumerate(self._tiers) if key in tier.shelf), None)
            if level is None:
                break
            if compute_s and self._tiers[level].block_s > compute_s:
                return levels, self._tiers[level]
            levels.append(level)
        return levels, None

    def _share(self, onboard: Onboard, level: int, numbers: list[int]) -> Share:
        tier = self._tiers[level]
        keys = [onboard.keys[n] for n in numbers]
        slots = tier.shelf.pin(keys)
        copy = tier.store.load(keys, slots, [onboard.blocks[n] for n in numbers])
        return Share(level, numbers, slots, copy)

    def poll(self) -> None:
        """What has arrived can be matched from here on."""
        for onboard in list(self._under_way):
            for share in onboard.shares:
                share.done = share.done or share.copy.poll()
            if all(share.done is not None for share in onboard.shares):
                self._under_way.remove(onboard)
                self._arrived(onboard)

    def _arrived(self, onboard: Onboard) -> None:
        stored: list[int] = []
        for share in onboard.shares:
            whole = self._taken(onboard, share)
            stored += [n for n in whole if self._store(onboard, n)]
        if self._log is not None and stored:
            numbers = sorted(onboard.first + n for n in stored)
            request = onboard.request
            keys = request.keys.extend(request.tokens)
            self._log.blocks_stored(
                keys, numbers, request.tokens, request.source, lora_name=request.adapter_name
            )
        self._blocks.release([*onboard.matched, *onboard.blocks])

    def _store(self, onboard: Onboard, number: int) -> bool:
        return onboard.valid and self._blocks.store(onboard.blocks[number], onboard.keys[number])

    def _taken(self, onboard: Onboard, share: Share) -> list[int]:
        """The numbers of the blocks that came whole; a tier forgets the others."""
        tier, done = self._tiers[share.level], share.done
        assert done is not None
        tier.shelf.unpin(share.slots)
        whole = [n for n, good in zip(share.numbers, done.whole, strict=True) if good]
        tier.onboarded += len(whole)
        tier.hit_tokens += len(whole) * self._blocks.block_size
        tier.shelf.touch([onboard.keys[n] for n in whole])
        if whole:
            # The first measurement is taken as it is; later ones move the mean.
            measured = done.seconds / len(whole)
            tier.block_s += (measured - tier.block_s) * (_FRESH if tier.block_s else 1.0)
        broken = [onboard.keys[n] for n in share.numbers if n not in set(whole)]
        if broken and onboard.valid:
            tier.failed += len(broken)
            self._offloads.remove(share.level, broken)
        return whole

    def clear(self) -> None:
        """What is on its way does not count."""
        for onboard in self._under_way:
            onboard.valid = False

    def owned_blocks(self) -> list[list[int]]:
        return [[*onboard.matched, *onboard.blocks] for onboard in self._under_way]
