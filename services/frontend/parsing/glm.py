"""The forms of GLM-4.5, and of GLM-4.7 and later, which have no line breaks.

<tool_call>weather
<arg_key>city</arg_key>
<arg_value>Bern</arg_value>
</tool_call>
<tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value></tool_call>
"""

from __future__ import annotations

from typing import ClassVar

from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.json_call import CLOSE, OPEN
from services.frontend.parsing.parameters import read_parameters, written_parameters
from services.frontend.parsing.rules import Rules, quoted
from services.frontend.parsing.source import Source, Steps

KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


class GLM(ToolFormat):
    """Reads both: white space around keys and values belongs to the form. Writes GLM-4.5's."""

    marks = (OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END)
    line_break: ClassVar[str] = '"\\n"'

    def read(self, source: Source, out: Listener) -> Steps[None]:
        while (yield from source.pass_to(out.text, [OPEN])):
            if (yield from self._call(source, out)):
                yield from source.skip_call_end(CLOSE, OPEN)
            else:
                out.text(source.taken)

    def _call(self, source: Source, out: Listener) -> Steps[bool]:
        yield from source.blanks()
        name = yield from source.word()
        yield from source.blanks()
        # A call without arguments ends at once; what goes on otherwise is none.
        if not name or (yield from source.peek()) != "<":
            return False
        out.begin(name)
        function = self.tools.get(name)
        yield from read_parameters(out, function, source, _key, VALUE_END, trim=False)
        out.end()
        return True

    def written(self, function: Function, rules: Rules) -> str:
        def write(name: str, value: str) -> str:
            key = f"{rules.mark(KEY)} {quoted(name)} {rules.mark(KEY_END)}"
            return f"{key} {self.line_break} {rules.mark(VALUE)} {value} {self.line_break}"

        head = f"{rules.mark(OPEN)} {quoted(function.name)} {self.line_break}"
        return f"{head} {written_parameters(function, rules, write, VALUE_END)} {rules.mark(CLOSE)}"

    def between(self, rules: Rules) -> str:
        return self.line_break


class GLM47(GLM):
    """Writes GLM-4.7's."""

    line_break = ""


def _key(source: Source) -> Steps[str | None]:
    if not (yield from source.take(KEY)):
        return None
    key, _ = yield from source.until([KEY_END], most=256)
    yield from source.blanks()
    yield from source.take(VALUE)
    return key.strip()
