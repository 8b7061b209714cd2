"""How a model writes calls and reasoning: `--tool-call-parser arrow --reasoning-parser brackets`.

[[ The weather is asked for. ]] => {"name": "weather", "arguments": {"city": "Bern"}}
"""

from __future__ import annotations

from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.json_call import json_call_schema, read_json_call
from services.frontend.parsing.reading import Thinking
from services.frontend.parsing.rules import Rules, quoted
from services.frontend.parsing.source import Source, Steps

ARROW = "=> "
BRACKETS = Thinking("[[", "]]")


class ArrowCalls(ToolFormat):
    """What follows an arrow and is no call stays in the text, the arrow included."""

    def read(self, source: Source, out: Listener) -> Steps[None]:
        while (yield from source.pass_to(out.text, [ARROW])):
            if not (yield from read_json_call(source, out)):
                out.text(source.taken)

    def written(self, function: Function, rules: Rules) -> str:
        return f"{quoted(ARROW)} {rules.json(json_call_schema(function))}"

    def between(self, rules: Rules) -> str:
        return '"\\n"'
