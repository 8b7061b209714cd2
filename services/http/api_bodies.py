"""What routes take and answer, from the structs that encode and decode it, in /openapi.json."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.openai_answers import ErrorAnswer
from protocol.request_fields import RequestField, Route
from protocol.request_table import ALL_FIELDS

JSON = "application/json"
TEXT = "text/plain; version=0.0.4"
EVENTS = "text/event-stream"
FORM = "multipart/form-data"
OBJECT = dict[str, Any]
ENDS = ("[DONE]", "[done]")
"""Data of the event that ends a stream; RTP-LLM's spelling is the second."""
_REF = "#/components/schemas/{name}"
_Json = dict[str, Any]
# structs that keep unknown members
_OPEN = ("ChatMessage", "ContentPart", "FunctionCall", "ToolCall")


@dataclass(frozen=True)
class RouteBodies:
    """Of one route. Types are what `msgspec` can describe; None is no body."""

    answer: Any = None  # 200; of a stream, the whole answer
    request: Any = None  # of a POST
    events: Any = None  # one event of the stream that `stream: true` asks for
    error: Any = ErrorAnswer  # of other statuses
    media: str = JSON  # of the answer
    optional: bool = False  # the request may come without a body
    form: bool = False  # the request is a form
    unwell: bool = False  # 503 has the same form as 200, not that of an error
    fields: Route | None = None  # whose rows of the request table describe the request's fields

    def types(self) -> Iterator[Any]:
        for kind in (self.request, self.answer, self.events, self.error):
            if kind is not None:
                yield kind


Table = Mapping[str, RouteBodies]
"""By method and path, as in `POST /v1/completions`."""


def add_bodies(document: _Json, table: Table) -> None:
    """Describe the bodies of all operations of an OpenAPI document that `table` has."""
    found = {
        f"{method.upper()} {path}": operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    for name, operation in found.items():
        operation["responses"].pop("422", None)  # FastAPI's own, which no route answers
        _name_parameters(operation, name)
    rows = [(operation, table[name]) for name, operation in found.items() if name in table]
    kinds = list(dict.fromkeys(kind for _, row in rows for kind in row.types()))
    shapes, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    shape_of = dict(zip(kinds, shapes, strict=True))
    for operation, row in rows:
        _describe(operation, row, shape_of)
        if row.fields is not None:
            name = shape_of[row.request]["$ref"].rpartition("/")[2]
            _explain(components[name]["properties"], row.fields)
    for shape in components.values():
        # No member of theirs: it holds those that only a chat template knows.
        if shape.get("title") in _OPEN:
            shape["properties"].pop("others", None)
    document["components"] = {"schemas": dict(sorted(components.items()))}


def _name_parameters(operation: _Json, name: str) -> None:
    """Those of the path that the route reads by itself."""
    known = operation.setdefault("parameters", [])
    for found in re.findall(r"{(\w+)}", name):
        if not any(one["name"] == found for one in known):
            shape = {"type": "string"}
            known.append({"name": found, "in": "path", "required": True, "schema": shape})


def _describe(operation: _Json, row: RouteBodies, shape_of: Mapping[Any, _Json]) -> None:
    content: _Json = {}
    if row.answer is not None:
        content[row.media] = {"schema": shape_of[row.answer]}
    if row.events is not None:
        content[EVENTS] = {"schema": _stream(shape_of[row.events], shape_of[row.error])}
    whole = {"description": "The answer.", **({"content": content} if content else {})}
    failed = {"description": "An error.", "content": {JSON: {"schema": shape_of[row.error]}}}
    operation["responses"] = {"200": whole, "default": failed}
    if row.unwell:
        operation["responses"]["503"] = {**whole, "description": "It cannot serve requests."}
    if row.request is not None:
        media = FORM if row.form else JSON
        body = {media: {"schema": shape_of[row.request]}}
        operation["requestBody"] = {"content": body, "required": not row.optional}


def _stream(event: _Json, error: _Json) -> _Json:
    """Each of the events: OpenAPI 3.1 has no words for a whole stream."""
    told = {"contentMediaType": JSON, "contentSchema": {"anyOf": [event, error]}}
    return {
        "type": "object",
        "description": "Server-sent events, each of which looks so.",
        "properties": {"event": {"type": "string"}, "data": {"anyOf": [{"enum": ENDS}, told]}},
        "required": ["data"],
    }


def _explain(properties: _Json, route: Route) -> None:
    """What becomes of each field, as docs/api.md tells it. Of one that is refused, only the values
    that ask for nothing are left."""
    for row in ALL_FIELDS:
        if route in row.routes and row.name in properties:
            if row.state == "refused":
                properties[row.name] = {"enum": [None, *row.neutral]}
            properties[row.name]["description"] = _said(row)


def _said(row: RequestField) -> str:
    if row.state == "works":
        return row.does
    return f"{'Refused' if row.state == 'refused' else 'Without effect'}: {row.does}"
