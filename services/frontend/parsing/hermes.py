"""The form of Hermes, Qwen2.5, Qwen3 and Qwen2.5-VL.

<tool_call>
{"name": "weather", "arguments": {"city": "Bern"}}
</tool_call>
"""

from __future__ import annotations

from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.json_call import json_call_schema, read_json_call
from services.frontend.parsing.rules import Rules
from services.frontend.parsing.source import Source, Steps

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes(ToolFormat):
    """What is between the marks and is no call stays in the text, marks included."""

    marks = (OPEN, CLOSE)

    def read(self, source: Source, out: Listener) -> Steps[None]:
        while (yield from source.pass_to(out.text, [OPEN])):
            yield from source.blanks()
            if (yield from read_json_call(source, out)):
                yield from source.skip_call_end(CLOSE, OPEN)
            else:
                out.text(source.taken)

    def written(self, function: Function, rules: Rules) -> str:
        body = rules.json(json_call_schema(function))
        return f'{rules.mark(OPEN)} "\\n" {body} "\\n" {rules.mark(CLOSE)}'

    def between(self, rules: Rules) -> str:
        return '"\\n"'
