"""The forms of Mistral: a list after one mark, or each call after a mark of its own.

[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bern"}, "id": "VvvODy9mT"}]
[TOOL_CALLS]weather[ARGS]{"city": "Bern"}
[TOOL_CALLS]weather[CALL_ID]VvvODy9mT[ARGS]{"city": "Bern"}
"""

from __future__ import annotations

import uuid

from services.frontend.parsing.base import Function, ToolFormat, object_call
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.json_call import json_call_schema, read_json_call
from services.frontend.parsing.rules import Rules, quoted
from services.frontend.parsing.source import Source, Steps

CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class Mistral(ToolFormat):
    """Reads both; writes each call after a mark of its own."""

    marks = (CALLS, CALL_ID, ARGS)

    def new_id(self) -> str:
        """Templates refuse any other than nine letters and digits."""
        return uuid.uuid4().hex[:9]

    def read(self, source: Source, out: Listener) -> Steps[None]:
        while (yield from source.pass_to(out.text, [CALLS])):
            yield from source.blanks()
            listed = yield from source.take("[")
            read = self._list if listed else self._call
            if not (yield from read(source, out)):
                out.text(source.taken)

    def _list(self, source: Source, out: Listener) -> Steps[bool]:
        heard = False
        while True:
            yield from source.blanks()
            if not (yield from read_json_call(source, out)):
                return heard
            heard = True
            yield from source.blanks()
            if not (yield from source.take(",")):
                yield from source.take("]")
                return heard

    def _call(self, source: Source, out: Listener) -> Steps[bool]:
        name = yield from source.word()
        if (yield from source.take(CALL_ID)):
            yield from source.word()
        yield from source.take(ARGS)
        yield from source.blanks()
        return (yield from object_call(name, source, out))

    def written(self, function: Function, rules: Rules) -> str:
        arguments = rules.json(function.parameters)
        return f"{rules.mark(CALLS)} {quoted(function.name)} {rules.mark(ARGS)} {arguments}"


class MistralList(Mistral):
    """Writes a list after one mark, as the first versions of the tokenizer."""

    def before(self, rules: Rules) -> str:
        return f'{rules.mark(CALLS)} "["'

    def written(self, function: Function, rules: Rules) -> str:
        return rules.json(json_call_schema(function))

    def between(self, rules: Rules) -> str:
        return '", "'

    def after(self, rules: Rules) -> str:
        return '"]"'
