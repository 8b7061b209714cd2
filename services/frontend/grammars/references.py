"""References within a function's parameters, which move: into a call, or one by one into its form.

Parts of forms have `$defs` and `definitions` beside them, and nothing else of the parameters.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import msgspec

from protocol.errors import InvalidRequest
from services.frontend.grammars.json_schema import each_part
from services.frontend.parsing.base import Function, Json, pointed, referred
from services.frontend.parsing.rules import MAX_CHARS, shared


def anchored(function: Function) -> Json:
    """The function's parameters, in which `#` and `#/...` point to a schema of `$defs` or
    `definitions`. Other references (`#name`, URIs) and definitions that none of these points to
    stay as they are. `InvalidRequest` names a reference to nothing, or says that what is to be
    written again is too long."""
    return _Places(function).anchored()


class _Places:
    """What is referred to, each place once: definitions stay where they are, any other place is
    written again among them."""

    def __init__(self, function: Function) -> None:
        self._function = function
        defined = shared(function.parameters)
        self._defined: Json = {k: dict(v) for k, v in defined.items() if isinstance(v, dict)}
        known = self._defined.get("$defs", {})
        numbers = map("part{}".format, itertools.count())
        self._new_names = (name for name in numbers if name not in known)
        self._names: dict[int, str] = {}  # by identity: a place can be spelled in many ways
        self._reached: set[tuple[str, str]] = set()  # definitions
        # Not looked into at once: a place may refer to itself, or begin a long chain.
        self._waiting: deque[tuple[str, str, Any]] = deque()
        self._num_chars = 0  # of what is written again

    def anchored(self) -> Json:
        moved = self._parts_moved(self._function.parameters)
        while self._waiting:
            keyword, name, place = self._waiting.popleft()
            self._defined.setdefault(keyword, {})[name] = self._moved(place)
        return {**moved, **self._defined}

    def _moved(self, schema: Any) -> Any:
        # Within a schema that has a URI of its own, # is that schema.
        if not isinstance(schema, dict) or "$id" in schema:
            return schema
        return self._parts_moved(schema)

    def _parts_moved(self, schema: Json) -> Json:
        """Without definitions in it, which count once something points there."""
        definitions = shared(schema)
        plain = {key: value for key, value in schema.items() if key not in definitions}
        if "$ref" in plain:
            plain["$ref"] = self._reference(plain["$ref"])
        return {**schema, **each_part(plain, self._moved)}

    def _reference(self, reference: Any) -> Any:
        """A reference, as it is once everything has moved."""
        names = pointed(reference) if isinstance(reference, str) else []
        if names is None:
            return reference
        place = self._place(reference)
        if len(names) == 2 and names[0] in self._defined:
            self._reach(names[0], names[1], place)
            return reference
        if id(place) not in self._names:
            self._names[id(place)] = name = next(self._new_names)
            self._waiting.append(("$defs", name, self._written_again(place)))
        return f"#/$defs/{self._names[id(place)]}"

    def _place(self, reference: Any) -> Any:
        parameters = self._function.parameters
        found = referred(parameters, reference) if isinstance(reference, str) else None
        if found is None:
            raise self._refused(f"refer to {reference!r}, which is not in them")
        return found

    def _reach(self, keyword: str, name: str, place: Any) -> None:
        if (keyword, name) not in self._reached:
            self._reached.add((keyword, name))
            self._waiting.append((keyword, name, place))

    def _written_again(self, place: Any) -> Any:
        if place is self._function.parameters:
            place = {k: v for k, v in place.items() if k != "$id" and k not in self._defined}
        self._num_chars += len(msgspec.json.encode(place).decode())
        if self._num_chars > MAX_CHARS:
            raise self._refused(
                f"refer to places outside of `$defs` that have more than {MAX_CHARS} characters"
                " together"
            )
        return place

    def _refused(self, why: str) -> InvalidRequest:
        message = f"tools: the parameters of {self._function.name} {why}"
        return InvalidRequest(message, param="tools")
