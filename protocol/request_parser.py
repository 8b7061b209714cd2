"""Bodies of one route into its struct, by the table of fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

import msgspec
from msgspec.structs import FieldInfo

from protocol.decoding import accepted, refusal_of
from protocol.errors import InvalidRequest
from protocol.request_fields import RequestField, Route

_S = TypeVar("_S", bound=msgspec.Struct)


@dataclass(frozen=True)
class RequestParser(Generic[_S]):
    """`decoder` also takes the fields that the table lists and the struct has not; `refused` are
    the rows of those that are not honoured, `defaults` what null stands for where the struct has no
    null."""

    decoder: msgspec.json.Decoder[_S]
    refused: tuple[RequestField, ...]
    defaults: dict[str, Any]

    @staticmethod
    def of(
        struct: type[_S], table: Iterable[RequestField], route: Route, **overridden: Any
    ) -> RequestParser[_S]:
        """`overridden`: types of fields as they are decoded, where they are not the struct's."""
        rows = [row for row in table if route in row.routes]
        fields = msgspec.structs.fields(struct)
        known = {field.name for field in fields}
        nullable = [f for f in fields if not f.required and type(None) not in get_args(f.type)]
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
        refused = tuple(row for row in rows if row.state == "refused")
        return RequestParser(
            msgspec.json.Decoder(wire), refused, {f.name: f.default for f in nullable}
        )

    def described(self, name: str = "", /, **overridden: Any) -> type[msgspec.Struct]:
        """What is decoded, as /openapi.json describes it, by its struct's name or another.
        `overridden`: types of fields that are looked at once they are decoded."""
        wire = self.decoder.type
        shown = [*_typed(msgspec.structs.fields(wire), overridden)]
        return msgspec.defstruct(name or wire.__name__, shown, bases=(wire,), kw_only=True)

    def parsed(self, data: bytes) -> _S:
        """`InvalidRequest` names the field that is not what it must be, that the table does not
        list, or that changes the answer and is not honoured."""
        request = accepted(self.decoder.decode, data, refusal=lambda error: _refusal(data, error))
        for row in self.refused:
            if row.asks(getattr(request, row.name)):
                raise row.refusal()
        for name, default in self.defaults.items():
            if getattr(request, name) is None:
                setattr(request, name, default)
        return request


def _typed(
    fields: Iterable[FieldInfo], types: Mapping[str, Any]
) -> Iterator[tuple[str, Any] | tuple[str, Any, Any]]:
    """Those of `fields` that have other types, with the defaults that they have."""
    for field in fields:
        if field.name in types:
            kind = types[field.name]
            yield (field.name, kind) if field.required else (field.name, kind, field.default)


def _refusal(data: bytes, error: msgspec.ValidationError) -> InvalidRequest:
    """What is wrong with a body, if it is JSON: the decoder stops at the first wrong field."""
    accepted(lambda body: msgspec.json.decode(body, type=msgspec.Raw), data)
    return refusal_of(error)
