"""Which types of JSON a schema lets through."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from services.frontend.parsing.base import Json, constants_of, referred

ANY = frozenset(("string", "integer", "number", "boolean", "null", "object", "array"))
MAX_DEPTH = 32  # of schemas within each other, from which on anything may be
_NAMES: Mapping[type, str] = MappingProxyType(
    {
        str: "string",
        int: "integer",
        float: "number",
        bool: "boolean",
        type(None): "null",
        dict: "object",
        list: "array",
    }
)


def type_of(value: Any) -> str:
    """JSON's name for the type of a decoded value; a number without a fraction is an integer."""
    return _NAMES[type(value)]


class ValueTypes:
    """`root`: the schema that references point into."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._known: dict[str, frozenset[str]] = {}  # by reference

    def of(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """Types that a value may have; all of them where the schema says nothing that is known."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return ANY
        types = _named(schema.get("type"))
        if constants := constants_of(schema):
            types &= _named([type_of(constant) for constant in constants])
        if isinstance(reference := schema.get("$ref"), str):
            types &= self._referred(reference, depth)
        for key in ("anyOf", "oneOf"):
            if isinstance(found := schema.get(key), list) and found:
                types &= frozenset[str]().union(*(self.of(one, depth + 1) for one in found))
        if isinstance(found := schema.get("allOf"), list):
            types = types.intersection(*(self.of(one, depth + 1) for one in found))
        return types

    def _referred(self, reference: str, depth: int) -> frozenset[str]:
        if reference not in self._known:
            self._known[reference] = ANY  # as long as it is being looked at
            self._known[reference] = self.of(referred(self._root, reference), depth + 1)
        return self._known[reference]


def _named(names: Any) -> frozenset[str]:
    found = names if isinstance(names, list) else [names]
    known = ANY.intersection(name for name in found if isinstance(name, str))
    if not known:
        return ANY
    return known | {"integer"} if "number" in known else known
