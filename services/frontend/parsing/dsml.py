"""The forms of DeepSeek V3.2 and V4, which differ in the outer mark: function_calls, tool_calls.

<｜DSML｜function_calls>
<｜DSML｜invoke name="weather">
<｜DSML｜parameter name="city" string="true">Bern</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from services.frontend.parsing.base import (
    Function,
    Json,
    ToolFormat,
    constants_of,
    properties_of,
    required_of,
)
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.parameters import Parameters, only_strings
from services.frontend.parsing.rules import Rules, quoted, shared
from services.frontend.parsing.source import Source, Steps

TOKEN = "｜DSML｜"
INVOKE, INVOKED = f'<{TOKEN}invoke name="', f"</{TOKEN}invoke>"
PARAMETER, PARAMETER_END = f'<{TOKEN}parameter name="', f"</{TOKEN}parameter>"
MAX_HEAD = 512


class DeepSeek32(ToolFormat):
    """Reads both; writes V3.2's."""

    outer: ClassVar[str] = "function_calls"
    marks = (
        TOKEN,
        *(
            f"<{end}{TOKEN}{name}>"
            for name in ("function_calls", "tool_calls")
            for end in ("", "/")
        ),
    )

    def read(self, source: Source, out: Listener) -> Steps[None]:
        # Not the bare token: of marks none may hold another, and it stands in all of these.
        while mark := (yield from source.pass_to(out.text, [*self.marks[1:], INVOKE])):
            if mark != INVOKE:
                continue
            if (yield from self._call(source, out)):
                yield from source.skip_call_end(INVOKED, INVOKE)
            else:
                out.text(source.taken)

    def _call(self, source: Source, out: Listener) -> Steps[bool]:
        name = yield from source.word()
        if not name or not (yield from source.take('">')):
            return False
        out.begin(name)
        parameters = Parameters(out, self.tools.get(name))
        complete = True
        while complete:
            yield from source.blanks()
            if not (yield from source.take(PARAMETER)):
                parameters.end()
                break
            head, _ = yield from source.until([">"], most=MAX_HEAD)
            key, _, kind = head.partition('"')
            # Without the attribute a value may be either, which is read as JSON if it is some.
            schema: Json = {"type": "string"} if 'string="true"' in kind else {}
            complete = yield from parameters.read(
                key, source, PARAMETER_END, trim=False, schema=schema
            )
        out.end()
        return True

    def before(self, rules: Rules) -> str:
        return f'{_spelled(f"<{TOKEN}{self.outer}>", rules)} "\\n"'

    def written(self, function: Function, rules: Rules) -> str:
        required = required_of(function.parameters)
        terms = [_spelled(f'{INVOKE}{function.name}">', rules), '"\\n"']
        for name, schema in properties_of(function.parameters).items():
            term = f'{_written(name, schema, function, rules)} "\\n"'
            terms.append(term if name in required else f"({term})?")
        return " ".join([*terms, _spelled(INVOKED, rules)])

    def between(self, rules: Rules) -> str:
        return '"\\n"'

    def after(self, rules: Rules) -> str:
        return f'"\\n" {_spelled(f"</{TOKEN}{self.outer}>", rules)}'


class DeepSeek4(DeepSeek32):
    """Writes V4's."""

    outer = "tool_calls"


def _written(name: str, schema: Json, function: Function, rules: Rules) -> str:
    """Terms for one parameter."""
    constants = constants_of(schema)
    texts = [constant for constant in constants if isinstance(constant, str)]
    plain = only_strings(schema) if not constants else len(texts) == len(constants)
    head = _spelled(f'{PARAMETER}{name}" string="{"true" if plain else "false"}">', rules)
    if plain and not constants:
        return f"{head} {_text_to_end(rules)}"
    if plain:
        value = rules.one_of(texts)
    elif constants:
        value = rules.one_of(msgspec.json.encode(one).decode() for one in constants)
    else:
        value = rules.json({**schema, **shared(function.parameters)})
    return f"{head} {value} {_spelled(PARAMETER_END, rules)}"


def _text_to_end(rules: Rules) -> str:
    """A text and the end of its parameter."""
    before, after = PARAMETER_END.split(TOKEN)
    if not rules.is_token(TOKEN):
        return rules.text_before(PARAMETER_END)
    # An expression ends at a bare slash.
    text = rules.terminal(f"/(?s:.*){before}/".replace("</", r"<\/"))
    return f"{text} {rules.mark(TOKEN)} {quoted(after)}"


def _spelled(text: str, rules: Rules) -> str:
    """A text with the token in it, which is one of the vocabulary or letters."""
    if not rules.is_token(TOKEN):
        return quoted(text)
    before, after = text.split(TOKEN, 1)
    return f"{quoted(before)} {rules.mark(TOKEN)} {quoted(after)}"
