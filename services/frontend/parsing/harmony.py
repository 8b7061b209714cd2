"""The form of gpt-oss: every message of an answer names its channel.

<|channel|>analysis<|message|>Where is it?<|end|><|start|>assistant<|channel|>commentary
to=functions.weather <|constrain|>json<|message|>{"city": "Bern"}<|call|>

Read here and not by openai-harmony: that package reads only token ids of a vocabulary which it
downloads from the internet when it starts.
"""

from __future__ import annotations

from collections.abc import Callable

from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.rules import Rules, quoted
from services.frontend.parsing.source import Source, Steps

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
CONSTRAIN, CALL, RETURN = "<|constrain|>", "<|call|>", "<|return|>"
MAX_HEAD = 512
_ENDS = (END, CALL, RETURN, START)
_PREFIX = "functions."


class Harmony(ToolFormat):
    """Reasoning is on the channel analysis, calls name their recipient, all else is text."""

    marks = (START, CHANNEL, MESSAGE, END, CONSTRAIN, CALL, RETURN)
    always = True

    def read(self, source: Source, out: Listener) -> Steps[None]:
        while (yield from source.more()):
            head, mark = yield from source.until([MESSAGE], MAX_HEAD)
            if not mark:
                # Text without a head is what a model says that was not trained for channels.
                if CHANNEL not in head:
                    out.text(head)
                continue
            yield from self._message(head, source, out)

    def _message(self, head: str, source: Source, out: Listener) -> Steps[None]:
        if name := _recipient(head):
            out.begin(name)
            yield from source.blanks()
            yield from source.json(out.arguments, keep=False)
            yield from source.until(_ENDS)
            out.end()
        else:
            sink: Callable[[str], None] = (
                out.reasoning if "analysis" in _channel(head) else out.text
            )
            yield from source.pass_to(sink, _ENDS)

    def before(self, rules: Rules) -> str:
        thought = f'{rules.mark(CHANNEL)} "analysis" {rules.mark(MESSAGE)} {rules.text_before(END)}'
        return f'({thought} {rules.mark(START)} "assistant")?'

    def opening(self, rules: Rules) -> str:
        return f'{self.before(rules)} {rules.mark(CHANNEL)} "final" {rules.mark(MESSAGE)}'

    def written(self, function: Function, rules: Rules) -> str:
        to = quoted(f"commentary to={_PREFIX}{function.name} ")
        head = f'{rules.mark(CHANNEL)} {to} {rules.mark(CONSTRAIN)} "json" {rules.mark(MESSAGE)}'
        return f"{head} {rules.json(function.parameters)}"

    def between(self, rules: Rules) -> str:
        return f'{rules.mark(CALL)} {rules.mark(START)} "assistant"'


def _channel(head: str) -> str:
    return head.rpartition(CHANNEL)[2].partition(CONSTRAIN)[0]


def _recipient(head: str) -> str:
    """Who a message is for, "" for the client's reader."""
    _, found, rest = head.partition(f"to={_PREFIX}")
    name = rest.split(maxsplit=1)[0] if found and rest.split() else ""
    return name.partition("<|")[0]
