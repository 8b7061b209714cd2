"""What becomes of each field of a client's request: one row a field.

Rows are in `protocol.request_table` and, for agents' APIs, in `protocol.agent_fields`: what is in
none of them is refused. A `RequestParser` reads a route's bodies by them, and `Members` the objects
within a request. docs/api.md is made from the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, get_args

import msgspec
from msgspec.structs import FieldInfo

from protocol.decoding import accepted, finite, refusal_of, unknown_parameter
from protocol.errors import InvalidRequest

_S = TypeVar("_S", bound=msgspec.Struct)
Json = dict[str, Any]
Route = Literal[
    "chat", "completions", "responses", "messages", "embeddings", "scores", "rerank",
    "classes", "similarity", "sparse", "colbert",
]  # fmt: skip
State = Literal["works", "refused", "harmless"]
CHAT: tuple[Route, ...] = ("chat",)
TEXT: tuple[Route, ...] = ("completions",)
BOTH: tuple[Route, ...] = (*CHAT, *TEXT)
_NUMBERS = dict[str, float]


@dataclass(frozen=True)
class RequestField:
    """One row of the table."""

    name: str  # as the client writes it
    state: State  # refused: 400 that names it; harmless: taken, without any effect on the answer
    does: str  # a sentence for the API reference; of a refused one: what to do instead
    example: Any  # a value that is legal elsewhere
    routes: tuple[Route, ...] = BOTH  # requests that have it
    neutral: tuple[Any, ...] = ()  # values of a refused one that ask for nothing; null always does
    tokens: str = ""  # what a proxy that renders requests does otherwise than the row says
    openai: str = ""  # what one that relays them does otherwise than pass the field on

    def asks(self, value: Any) -> bool:
        """Whether `value` of a refused field wants what is not done here."""
        return value is not None and not any(
            value == idle and isinstance(value, bool) == isinstance(idle, bool)
            for idle in self.neutral
        )

    def refusal(self, inside: str = "") -> InvalidRequest:
        """`inside`: the path of the object that has it, with a dot at its end."""
        name = inside + self.name
        return InvalidRequest(
            f"{name} is not supported: {self.does}", param=name, code="unsupported_parameter"
        )


def works(name: str, does: str, example: Any, *, routes: tuple[Route, ...] = BOTH) -> RequestField:
    return RequestField(name, "works", does, example, routes)


def refused(
    name: str,
    does: str,
    example: Any,
    *neutral: Any,
    routes: tuple[Route, ...] = BOTH,
) -> RequestField:
    return RequestField(name, "refused", does, example, routes, neutral)


def harmless(
    name: str, does: str, example: Any, *, routes: tuple[Route, ...] = BOTH
) -> RequestField:
    return RequestField(name, "harmless", does, example, routes)


@dataclass(frozen=True)
class RowsOf:
    """Makes rows of one route."""

    route: Route

    def works(self, name: str, does: str, example: Any) -> RequestField:
        return works(name, does, example, routes=(self.route,))

    def refused(self, name: str, does: str, example: Any, *neutral: Any) -> RequestField:
        return refused(name, does, example, *neutral, routes=(self.route,))

    def harmless(self, name: str, does: str, example: Any) -> RequestField:
        return harmless(name, does, example, routes=(self.route,))


@dataclass(frozen=True)
class RequestParser(Generic[_S]):
    """`decoder` also takes the fields that the table lists and the struct has not; `refused` are
    the rows of those that are not honoured, `defaults` what null stands for where the struct has no
    null. `numbers` are the types of fields with any number of floats."""

    decoder: msgspec.json.Decoder[_S]
    refused: tuple[RequestField, ...]
    defaults: dict[str, Any]
    numbers: dict[str, Any]

    @staticmethod
    def of(
        struct: type[_S], table: Iterable[RequestField], route: Route, **overridden: Any
    ) -> RequestParser[_S]:
        """`overridden`: types of fields as they are decoded, where they are not the struct's."""
        rows = [row for row in table if route in row.routes]
        fields = msgspec.structs.fields(struct)
        known = {f.name for f in fields}
        nullable = [f for f in fields if not f.required and type(None) not in get_args(f.type)]
        numbers = {f.name: f.type for f in fields if _NUMBERS in get_args(f.type)}
        # As any JSON: only of that `finite` makes the floats.
        overridden = {**dict.fromkeys(numbers, Json | None), **overridden}
        wire = msgspec.defstruct(
            struct.__name__,
            [
                *_typed(fields, overridden),
                *((f.name, f.type | None, f.default) for f in nullable),
                *((row.name, Any, None) for row in rows if row.name not in known),
            ],
            bases=(struct,),
            kw_only=True,
            forbid_unknown_fields=True,
        )
        return RequestParser(
            msgspec.json.Decoder(wire, float_hook=finite),
            tuple(row for row in rows if row.state == "refused"),
            {f.name: f.default for f in nullable},
            numbers,
        )

    def described(self, name: str = "", /, **overridden: Any) -> type[msgspec.Struct]:
        """What is decoded, as /openapi.json describes it, by its struct's name or another.
        `overridden`: types of fields that are looked at once they are decoded."""
        wire = self.decoder.type
        shown = [*_typed(msgspec.structs.fields(wire), {**self.numbers, **overridden})]
        return msgspec.defstruct(name or wire.__name__, shown, bases=(wire,), kw_only=True)

    def parsed(self, data: bytes) -> _S:
        """`InvalidRequest` names the field that is not what it must be, that the table does not
        list, or that changes the answer and is not honoured."""
        request = accepted(
            self.decoder.decode, data, refusal=lambda error: _refusal_of_body(data, error)
        )
        for row in self.refused:
            if row.asks(getattr(request, row.name)):
                raise row.refusal()
        for name, default in self.defaults.items():
            if getattr(request, name) is None:
                setattr(request, name, default)
        for name in self.numbers:
            if (given := getattr(request, name)) is not None:
                setattr(request, name, _numbers(name, given))
        return request


def _numbers(name: str, given: Json) -> dict[str, float]:
    try:
        return msgspec.convert(given, _NUMBERS)
    except msgspec.ValidationError as error:
        raise refusal_of(error, name) from None


def _typed(
    fields: Iterable[FieldInfo], types: Mapping[str, Any]
) -> Iterator[tuple[str, Any] | tuple[str, Any, Any]]:
    """Those of `fields` that have other types, with the defaults that they have."""
    for one in fields:
        if one.name in types:
            kind = types[one.name]
            yield (one.name, kind) if one.required else (one.name, kind, one.default)


def _refusal_of_body(data: bytes, error: msgspec.ValidationError) -> InvalidRequest:
    """What is wrong with a body, if it is JSON: the decoder stops at the first wrong field."""
    accepted(lambda body: msgspec.json.decode(body, type=msgspec.Raw), data)
    return refusal_of(error)


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
