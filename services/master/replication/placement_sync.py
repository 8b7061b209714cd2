"""What a placed request holds, for other masters to count as their own."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

from protocol.errors import InvalidRequest
from protocol.placement import ScheduleRequest
from services.master.fleet.cache_index import PendingEncode
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.fleet.pool import Charge
from services.master.index.prefix_index import KEY_TYPE
from services.master.placement.reservation import Reservation
from services.master.replication.messages import MAX_KEYS, Placed, SharedCharge, SharedEncode

_LONGEST_MS = 86_400e3


def share(request: ScheduleRequest, held: Reservation, now_ms: float) -> Placed:
    """The message that tells of it."""
    workers = [at for at in (_at(held, held.prefill), _at(held, held.decode)) if at is not None]
    noted = any(at.caches(held.predicted) is not None for at in workers)
    start = 0 if noted or held.expected is None else held.expected.start
    told = noted or held.expected is not None
    keys = request.block_keys[start : start + MAX_KEYS] if told else []
    return Placed(
        request.request_id,
        held.fleet.model,
        max(0.0, held.expires_at - now_ms),
        [_encode(held, name, charge, now_ms) for name, charge in held.encodes.items()],
        _charge(held.prefill, now_ms),
        _charge(held.decode, now_ms),
        start,
        array(KEY_TYPE, keys).tobytes(),
        [item.mm_hash for item in request.items] if noted else [],
        held.expected is not None,
        held.predicted,
        bool(request.items),
    )


def _at(held: Reservation, charge: Charge | None) -> Instance | None:
    return None if charge is None else held.fleet.by_slot.get(int(charge.pool.slots[charge.row]))


def _charge(charge: Charge | None, now_ms: float) -> SharedCharge | None:
    if charge is None:
        return None
    return SharedCharge(
        charge.pool.ids[charge.row], max(0.0, charge.visible_at - now_ms), charge.work_ms,
        charge.tokens, charge.context, charge.blocks, charge.haste,
    )  # fmt: skip


def _encode(held: Reservation, mm_hash: str, charge: Charge, now_ms: float) -> SharedEncode:
    told = _charge(charge, now_ms)
    assert told is not None
    pending = held.fleet.index(held.predicted).pending.get(mm_hash)
    if pending is None or pending.charge is not charge:
        return SharedEncode(mm_hash, told)
    ready, expires = pending.ready_at - now_ms, pending.expires_at - now_ms
    return SharedEncode(mm_hash, told, max(0.0, ready), max(0.0, expires))


def restore(
    placed: Placed, fleet: Fleet, instances: Mapping[str, Instance], now_ms: float
) -> Reservation:
    """Count it here; workers that are not known here are left out. `InvalidRequest` for numbers
    that no master counts with."""
    _check(placed)
    held = Reservation(fleet, now_ms + placed.ttl_ms, predicted=placed.predicted)
    # The master that moves workers between roles may be this one, and place nothing itself.
    if placed.media:
        fleet.media_at = now_ms
    for encode in placed.encodes:
        _restore_encode(encode, held, instances, now_ms)
    first = _find(placed.prefill or placed.decode, held, instances)
    second = _find(placed.decode, held, instances)
    held.prefill = _restore(placed.prefill, held, instances, now_ms)
    held.decode = _restore(placed.decode, held, instances, now_ms)
    if held.prefill is not None and held.decode is not None:
        held.decode.pool.await_stages(held.decode, 1)
    if (computes := held.prefill or held.decode) is not None:
        computes.pool.await_stages(computes, len(held.encodes))
    keys = array(KEY_TYPE)
    # As many whole keys as there are: `frombytes` raises for a part of one.
    keys.frombytes(placed.keys[: len(placed.keys) // keys.itemsize * keys.itemsize])
    if first is not None:
        _expect(placed, keys.tolist(), held, first, now_ms)
    caches = None if second is None else second.caches(placed.predicted)
    if caches is not None and second is not first:
        caches.blocks.use(keys, now_ms)
    return held


def _check(placed: Placed) -> None:
    charges = [encode.charge for encode in placed.encodes]
    charges += [charge for charge in (placed.prefill, placed.decode) if charge is not None]
    times = [placed.ttl_ms, *(ms for e in placed.encodes for ms in (e.ready_ms, e.expires_ms))]
    times += [charge.visible_ms for charge in charges]
    work = [n for c in charges for n in (c.work_ms, c.tokens, c.context, c.blocks)]
    if not all(ms <= _LONGEST_MS for ms in times) or not all(map(math.isfinite, work)):
        raise InvalidRequest(
            "another master's placement holds times or work that no request can have",
            code="absurd_placement",
        )


def _find(
    charge: SharedCharge | None, held: Reservation, instances: Mapping[str, Instance]
) -> Instance | None:
    found = instances.get(charge.instance_id) if charge is not None else None
    return found if found is not None and found.info.model == held.fleet.model else None


def _restore(
    charge: SharedCharge | None, held: Reservation, instances: Mapping[str, Instance], now_ms: float
) -> Charge | None:
    at = _find(charge, held, instances)
    if charge is None or at is None:
        return None
    counted = Charge(
        at.pool, at.row, now_ms + charge.visible_ms, charge.work_ms, charge.tokens,
        charge.context, charge.blocks, haste=charge.haste,
    )  # fmt: skip
    at.pool.charge(counted, now_ms)
    return counted


def _restore_encode(
    encode: SharedEncode, held: Reservation, instances: Mapping[str, Instance], now_ms: float
) -> None:
    charge, at = _restore(encode.charge, held, instances, now_ms), None
    if charge is not None:
        held.encodes[encode.mm_hash] = charge
        at = _find(encode.charge, held, instances)
    if at is not None and encode.expires_ms > 0:
        ready, expires = now_ms + encode.ready_ms, now_ms + encode.expires_ms
        pending = PendingEncode(at.slot, ready, expires, charge)
        # An encode that is known here already stays the one to be joined.
        held.fleet.index(held.predicted).pending.setdefault(encode.mm_hash, pending)


def _expect(
    placed: Placed, keys: Sequence[int], held: Reservation, at: Instance, now_ms: float
) -> None:
    """As `Placer` does for its own: where a cache has no events it is taken to hold the prompt."""
    caches = at.caches(placed.predicted)
    if caches is not None:
        if not placed.start:
            caches.blocks.use(keys, now_ms)
        if not placed.predicted:
            caches.media.use(placed.mm_hashes, now_ms)
    elif placed.expected:
        padded = [0] * placed.start + list(keys)  # keys before the first missing are not read
        held.expected = held.fleet.expected.add(at.slot, placed.start, padded)
