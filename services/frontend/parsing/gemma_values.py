"""Values of a JSON schema as Gemma writes them, in terms of a Lark grammar."""

from __future__ import annotations

from typing import Any

import msgspec

from services.frontend.parsing.base import Json, constants_of, properties_of, referred, required_of
from services.frontend.parsing.rules import Rules, either, quoted

MAX_ALTERNATIVES = 64
_ALTERNATIVES = ("anyOf", "oneOf")


class Values:
    """`quote`: the mark around strings. `root`: the schema that references of others point into."""

    def __init__(self, rules: Rules, quote: str, root: Json) -> None:
        self._rules = rules
        self._quote = rules.mark(quote)
        self._text = f"{self._quote} {rules.text_before(quote)}"
        self._root = root
        self._referred_to: dict[str, str] = {}  # terms by reference

    def written(self, schema: Any) -> str:
        """Terms for a value. Where a schema refers to one that it lies in, and where it says
        nothing of a type, there may be a string."""
        if not isinstance(schema, dict):
            return self._text
        if isinstance(reference := schema.get("$ref"), str):
            return self._referred(reference)
        if choices := constants_of(schema):
            return self._constants(choices)
        for key in _ALTERNATIVES:
            found = schema.get(key)
            if isinstance(found, list) and 0 < len(found) <= MAX_ALTERNATIVES:
                return either(self.written(one) for one in found)
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            item = self._rules.new(self.written(schema.get("items")))
            return f'"[" ({item} ("," {item})*)? "]"'
        return either(self._plain(each) for each in (kind if isinstance(kind, list) else [kind]))

    def _referred(self, reference: str) -> str:
        if reference not in self._referred_to:
            self._referred_to[reference] = self._text  # as long as it is being written
            terms = self.written(referred(self._root, reference))
            self._referred_to[reference] = self._rules.new(terms)
        return self._referred_to[reference]

    def _plain(self, kind: Any) -> str:
        numbers = {
            "integer": "/-?[0-9]{1,19}/",
            "number": r"/-?[0-9]{1,19}(\.[0-9]{1,19})?/",
            "boolean": '("true" | "false")',
            "null": '"null"',
        }
        return numbers.get(str(kind), self._text)

    def _object(self, schema: Json) -> str:
        """Required properties first, so that each of the others may follow a comma; where none is
        required, the first one is."""
        terms = {
            name: f"{quoted(f'{name}:')} {self.written(value)}"
            for name, value in properties_of(schema).items()
        }
        required = required_of(schema) or list(terms)[:1]
        first = ' "," '.join(terms[name] for name in required)
        more = "".join(f' ("," {terms[name]})?' for name in terms if name not in required)
        return f'"{{" {first}{more} "}}"'

    def _constants(self, values: list[Any]) -> str:
        texts = [value for value in values if isinstance(value, str)]
        others = [value for value in values if not isinstance(value, str)]
        terms = []
        if texts:
            terms.append(f"{self._quote} {self._rules.one_of(texts)} {self._quote}")
        if others:
            terms.append(self._rules.one_of(msgspec.json.encode(v).decode() for v in others))
        return either(terms)
