"""What becomes of the members of the objects within a request: rows as of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from protocol.decoding import refusal_of, unknown_parameter
from protocol.request_fields import RequestField

_S = TypeVar("_S", bound=msgspec.Struct)
Json = dict[str, Any]


@dataclass(frozen=True)
class Members:
    """Of one kind of object. null is as good as leaving a member out, if it has no row too: clients
    send back whole answers, with members that other servers have."""

    path: str  # where such objects stand in a request, for the API reference
    rows: tuple[RequestField, ...]
    further: str = ""  # what becomes of members without a row; "": they are refused
    _named: Mapping[str, RequestField] = field(init=False, repr=False, compare=False)
    _honoured: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", {row.name: row for row in self.rows})
        works = frozenset(row.name for row in self.rows if row.state == "works")
        object.__setattr__(self, "_honoured", works)

    def split(self, given: Json, where: str) -> tuple[Json, Json]:
        """(members that are honoured, further ones) of the object at the path `where`.
        `InvalidRequest` names a member that is refused."""
        if given.keys() <= self._honoured:  # nearly all are so
            return given, {}
        honoured, further = {}, {}
        for name, value in given.items():
            row = self._named.get(name)
            if row is not None and row.state == "works":
                honoured[name] = value
            elif value is None or (row is not None and row.state == "harmless"):
                continue
            elif row is not None:
                if row.asks(value):
                    raise row.refusal(f"{where}.")
            elif self.further:
                further[name] = value
            else:
                raise unknown_parameter(f"{where}.{name}")
        return honoured, further

    def honoured(self, given: Json, where: str) -> Json:
        """As `split`, without further ones."""
        return self.split(given, where)[0]

    def converted(self, given: Json, kind: type[_S], where: str) -> _S:
        """What is honoured as a struct, which has the further ones in its field `others`."""
        honoured, further = self.split(given, where)
        try:
            found = msgspec.convert(honoured, kind)
        except msgspec.ValidationError as error:
            raise refusal_of(error, f"{where}.") from None
        if further:
            found.others = further  # type: ignore[attr-defined]
        return found
