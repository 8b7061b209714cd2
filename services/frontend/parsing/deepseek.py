"""The forms of DeepSeek V3 and R1, and of V3.1, whose calls have neither type nor fence.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
```json
{"city": "Bern"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Bern"}<｜tool▁call▁end｜>…
"""

from __future__ import annotations

from services.frontend.parsing.base import Function, ToolFormat, object_call
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.rules import Rules, quoted
from services.frontend.parsing.source import Source, Steps

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CLOSE, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
FENCE = "```json"


class DeepSeek(ToolFormat):
    """Reads both; writes V3's."""

    marks = (BEGIN, END, CALL, CLOSE, SEPARATOR)

    def read(self, source: Source, out: Listener) -> Steps[None]:
        while mark := (yield from source.pass_to(out.text, [BEGIN, CALL, END])):
            if mark != CALL:
                continue
            if (yield from self._call(source, out)):
                yield from source.skip_call_end(CLOSE, CALL)
            else:
                out.text(source.taken)

    def _call(self, source: Source, out: Listener) -> Steps[bool]:
        name = yield from source.word()
        if not (yield from source.take(SEPARATOR)):
            return False
        yield from source.blanks()
        if (yield from source.peek()) != "{":
            # V3: what stood before the separator was the type.
            name = yield from source.word()
            yield from source.blanks()
            yield from source.take(FENCE)
            yield from source.blanks()
        return (yield from object_call(name, source, out))

    def before(self, rules: Rules) -> str:
        return rules.mark(BEGIN)

    def written(self, function: Function, rules: Rules) -> str:
        head = f'{rules.mark(CALL)} "function" {rules.mark(SEPARATOR)}'
        body = f'{quoted(function.name)} "\\n{FENCE}\\n" {rules.json(function.parameters)}'
        return f'{head} {body} "\\n```" {rules.mark(CLOSE)}'

    def between(self, rules: Rules) -> str:
        return '"\\n"'

    def after(self, rules: Rules) -> str:
        return rules.mark(END)


class DeepSeek31(DeepSeek):
    """Writes V3.1's."""

    def written(self, function: Function, rules: Rules) -> str:
        head = f"{rules.mark(CALL)} {quoted(function.name)} {rules.mark(SEPARATOR)}"
        return f"{head} {rules.json(function.parameters)} {rules.mark(CLOSE)}"

    def between(self, rules: Rules) -> str:
        return ""
