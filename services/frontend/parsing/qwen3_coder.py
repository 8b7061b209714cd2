"""The form of Qwen3-Coder, Qwen3.5 and Nemotron 3.

<tool_call>
<function=weather>
<parameter=city>
Bern
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.json_call import CLOSE, OPEN
from services.frontend.parsing.parameters import read_parameters, written_parameters
from services.frontend.parsing.rules import Rules, quoted
from services.frontend.parsing.source import Source, Steps

FUNCTION, PARAMETER, END = "<function=", "<parameter=", "</parameter>"


class Qwen3Coder(ToolFormat):
    """The models often leave the outer marks out."""

    marks = (OPEN, CLOSE)

    def read(self, source: Source, out: Listener) -> Steps[None]:
        while mark := (yield from source.pass_to(out.text, [OPEN, FUNCTION])):
            if mark == OPEN:
                yield from source.blanks()
                if not (yield from source.take(FUNCTION)):
                    out.text(source.taken)
                    continue
            if (yield from self._call(source, out)):
                yield from source.blanks()
                yield from source.take("</function>")
                yield from source.blanks()
                yield from source.take(CLOSE)
            else:
                out.text(source.taken)

    def _call(self, source: Source, out: Listener) -> Steps[bool]:
        name = yield from source.word()
        if not name or not (yield from source.take(">")):
            return False
        out.begin(name)
        function = self.tools.get(name)
        yield from read_parameters(out, function, source, _key, END, trim=True)
        out.end()
        return True

    def written(self, function: Function, rules: Rules) -> str:
        def write(name: str, value: str) -> str:
            return f'{quoted(f"{PARAMETER}{name}>")} "\\n" {value} "\\n"'

        head = f'{rules.mark(OPEN)} "\\n" {quoted(f"{FUNCTION}{function.name}>")} "\\n"'
        body = written_parameters(function, rules, write, f"\n{END}")
        return f'{head} {body} "</function>\\n" {rules.mark(CLOSE)}'

    def between(self, rules: Rules) -> str:
        return '"\\n"'


def _key(source: Source) -> Steps[str | None]:
    if not (yield from source.take(PARAMETER)):
        return None
    key, _ = yield from source.until([">"], most=256)
    return key
