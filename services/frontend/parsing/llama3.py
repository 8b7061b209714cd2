"""The form of Llama 3.1 to 3.3: an answer that is nothing but calls, after a mark or without one.

{"name": "weather", "parameters": {"city": "Bern"}}; {"name": "halt", "parameters": {}}
<|python_tag|>brave_search.call(query="weather in Bern")
"""

from __future__ import annotations

import ast

import msgspec

from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.json_call import json_call_schema, read_json_call
from services.frontend.parsing.rules import Rules
from services.frontend.parsing.source import Source, Steps

TAG = "<|python_tag|>"
_CALL = ".call("
MAX_PYTHON = 1 << 16


class Llama3(ToolFormat):
    """An object without the mark is a call only if it names one of the tools: it may as well be the
    answer. Templates whose form is unknown get this one too: it needs no marks."""

    marks = (TAG,)

    def read(self, source: Source, out: Listener) -> Steps[None]:
        source.start()
        yield from source.blanks()
        if (yield from source.peek()) == "{":
            yield from self._calls(source, out, tagged=False)
        else:
            source.back()
        while (yield from source.pass_to(out.text, [TAG])):
            yield from source.blanks()
            yield from self._calls(source, out, tagged=True)

    def _calls(self, source: Source, out: Listener, *, tagged: bool) -> Steps[None]:
        """Calls, one after the other; what is none goes to the text."""
        while True:
            known = None if tagged else self.tools
            if (yield from source.peek()) == "{":
                found = yield from read_json_call(source, out, known)
            else:
                found = tagged and (yield from self._python(source, out))
            if not found:
                out.text(source.taken)
                source.start()
                return
            source.start()
            yield from source.blanks()
            if (yield from source.take(";")):
                yield from source.blanks()
            elif (yield from source.peek()) != "{":
                return

    def _python(self, source: Source, out: Listener) -> Steps[bool]:
        """A built-in tool: its name, then what looks like a call in Python."""
        word = yield from source.word()
        name = word.removesuffix(".call")
        if name == word or not name or not (yield from source.take("(")):
            return False
        text, _ = yield from source.until(["\n"], MAX_PYTHON)
        arguments = _keywords(f"({text.rstrip()}")
        if arguments is None:
            return False
        out.begin(name)
        out.arguments(arguments)
        out.end()
        return True

    def written(self, function: Function, rules: Rules) -> str:
        return rules.json(json_call_schema(function, "parameters"))

    def between(self, rules: Rules) -> str:
        return '"; "'


def _keywords(text: str) -> str | None:
    """The keyword arguments of a call as JSON; None if they are no plain values."""
    try:
        found = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(found, ast.Call) or found.args:
            return None
        values = {str(word.arg): ast.literal_eval(word.value) for word in found.keywords}
        return msgspec.json.encode(values).decode()
    # All that `literal_eval` and the parser raise for any text.
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
