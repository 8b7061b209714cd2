"""References within a function's parameters, which move: into a call, or one by one into its form.

Parts of forms have `$defs` and `definitions` beside them, and nothing else of the parameters.
"""

from __future__ import annotations

import itertools
from typing import Any

from protocol.errors import InvalidRequest
from services.frontend.grammars.json_schema import everywhere
from services.frontend.parsing.base import Function, Json, referred

MAX_PLACES = 256  # outside of the definitions: each is written once more, with all that lies in it
_STAYS = ("#/$defs/", "#/definitions/")


def anchored(function: Function) -> Json:
    """The function's parameters, in which all references point into `$defs` or `definitions`.
    `InvalidRequest` names one that points to nothing."""
    places = _Places(function)
    moved: Json = everywhere(function.parameters, places.moved)
    return {**moved, "$defs": {**_defined(moved), **places.defined}} if places.defined else moved


def _defined(parameters: Json) -> Json:
    found = parameters.get("$defs")
    return found if isinstance(found, dict) else {}


class _Places:
    """`defined`: what is referred to outside of the definitions, by its name in `$defs`."""

    def __init__(self, function: Function) -> None:
        self._function = function
        known = _defined(function.parameters)
        numbers = map("part{}".format, itertools.count())
        self._new_names = (name for name in numbers if name not in known)
        self._names: dict[int, str] = {}  # by identity: a place can be spelled in many ways
        self.defined: Json = {}

    def moved(self, schema: Json) -> Json:
        """One schema, whose reference points into the definitions."""
        if "$ref" not in schema:
            return schema
        target = self._target(schema["$ref"])
        if schema["$ref"].startswith(_STAYS):
            return schema
        name = self._names.get(id(target))
        if name is None:
            # Named before it is looked into: it may refer to itself.
            name = self._names[id(target)] = self._new_name()
            self.defined[name] = everywhere(self._alone(target), self.moved)
        return {**schema, "$ref": f"#/$defs/{name}"}

    def _target(self, reference: Any) -> Any:
        parameters = self._function.parameters
        found = referred(parameters, reference) if isinstance(reference, str) else None
        if found is None:
            raise self._refused(f"refer to {reference!r}, which is not in them")
        return found

    def _alone(self, target: Any) -> Any:
        if target is not self._function.parameters:
            return target
        return {key: value for key, value in target.items() if f"#/{key}/" not in _STAYS}

    def _new_name(self) -> str:
        if len(self._names) == MAX_PLACES:
            raise self._refused(f"refer to more than {MAX_PLACES} places outside of `$defs`")
        return next(self._new_names)

    def _refused(self, why: str) -> InvalidRequest:
        message = f"tools: the parameters of {self._function.name} {why}"
        return InvalidRequest(message, param="tools")
