"""How much work a message of protobuf makes for its parser, looked at before it is parsed.

A field takes two bytes, and a message within a message a hundred bytes of memory: 16 MB of empty
ones hold the event loop for half a second and take 800 MB. Texts, pictures and packed numbers are
one field each, however long.
"""

from __future__ import annotations

from typing import Any

from protocol.errors import PayloadTooLarge

MOST_FIELDS = 1 << 17
"""Of one message and the messages in it."""
_HARMLESS = 1 << 20  # bytes: too few for that many fields to do harm
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}


def check_message(data: bytes, descriptor: Any) -> None:
    """`PayloadTooLarge` if it has too many fields. What is malformed is for the parser to find."""
    if len(data) > _HARMLESS:
        _Fields(data).count(0, len(data), descriptor)


class _Fields:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MOST_FIELDS

    def count(self, place: int, end: int, descriptor: Any) -> None:
        while place < end:
            self._left -= 1
            if self._left < 0:
                raise PayloadTooLarge(f"the message has more than {MOST_FIELDS} fields")
            tag, place = self._varint(place)
            if tag & 7 == _VARINT:
                _, place = self._varint(place)
            elif tag & 7 == _BYTES:
                size, place = self._varint(place)
                field = descriptor.fields_by_number.get(tag >> 3)
                if field is not None and field.message_type is not None:
                    self.count(place, min(place + size, end), field.message_type)
                place += size
            else:
                # Groups are no more than a field where they begin, and one where they end.
                place += _SIZES.get(tag & 7, 0)

    def _varint(self, place: int) -> tuple[int, int]:
        """(the number at `place`, the place behind it)."""
        value = shift = 0
        # Ten bytes at most; a longer one, or one that is cut off, ends all counting.
        for byte in self._data[place : place + 10]:
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value, place
        return 0, len(self._data)
