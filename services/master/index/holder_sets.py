"""Sets of slots as integers of a few bytes: an index has one for each block, or shares one.

A set of up to `_FEW` slots is its slots in ascending order, each plus one, in `_BITS` bits each. A
larger set is a mask with a bit for each slot, negated. The empty set is 0. Equal sets are equal
integers. Two workers among 10,000 take 32 bytes so, and 1.3 KB as a mask.
"""

from __future__ import annotations

_BITS = 20
_FIELD = (1 << _BITS) - 1
_PAIRS = 1 << 2 * _BITS  # sets of one or two slots are less
_FEW = 16  # 68 bytes; a mask of 10,000 slots takes as much as 500 slots would


def only(slot: int) -> int:
    """The set of one slot."""
    return slot + 1 if slot < _FIELD else -(1 << slot)


def contains(code: int, slot: int) -> bool:
    if code < 0:
        return bool(-code >> slot & 1)
    field = slot + 1
    while code:
        if code & _FIELD == field:
            return True
        code >>= _BITS
    return False


def with_slot(code: int, slot: int) -> int:
    """`code` itself if the slot is in it."""
    if not code:
        return only(slot)
    if 0 < code <= _FIELD and slot < _FIELD:  # one holder becomes two: most of all calls
        field = slot + 1
        if field == code:
            return code
        return code << _BITS | field if field < code else field << _BITS | code
    if contains(code, slot):
        return code
    return _encode(mask_of(code) | 1 << slot) if code < 0 else _inserted(code, slot)


def _inserted(code: int, slot: int) -> int:
    slots = slots_in(code)
    if len(slots) == _FEW or slot >= _FIELD:
        return -(mask_of(code) | 1 << slot)
    return _packed(sorted((*slots, slot)))


def without_slot(code: int, slot: int) -> int:
    """`code` itself if the slot is not in it."""
    if 0 < code < _PAIRS:
        low, high, field = code & _FIELD, code >> _BITS, slot + 1
        if low == field:
            return high
        return low if high == field else code
    if not contains(code, slot):
        return code
    if code < 0:
        return _encode(-code ^ 1 << slot)
    return _packed([other for other in slots_in(code) if other != slot])


def mask_of(code: int) -> int:
    """With a bit for each slot of the set."""
    if code <= 0:
        return -code
    mask = 0
    while code:
        mask |= 1 << (code & _FIELD) - 1
        code >>= _BITS
    return mask


def slots_in(code: int) -> list[int]:
    """The slots of a set, ascending."""
    if code < 0:
        return slots_of(-code)
    found = []
    while code:
        found.append((code & _FIELD) - 1)
        code >>= _BITS
    return found


def slots_of(mask: int) -> list[int]:
    """The slots of a mask, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def _encode(mask: int) -> int:
    if mask.bit_count() > _FEW or mask.bit_length() > _FIELD:
        return -mask
    return _packed(slots_of(mask))


def _packed(slots: list[int]) -> int:
    """Of slots in ascending order."""
    code = 0
    for slot in reversed(slots):
        code = code << _BITS | slot + 1
    return code
