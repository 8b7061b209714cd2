"""How the answers of one request are read: reasoning first, then text and calls."""

from __future__ import annotations

from dataclasses import dataclass

from services.frontend.parsing.base import ToolFormat
from services.frontend.parsing.heard import Heard, Listener
from services.frontend.parsing.source import Source, Steps


@dataclass(frozen=True)
class Thinking:
    """The marks of one family. White space inside and after them belongs to the form."""

    open: str = "<think>"
    close: str = "</think>"

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends where the model has to think."""
        return prompt.rstrip().endswith(self.open)

    def read(self, source: Source, out: Listener, *, inside: bool) -> Steps[None]:
        """Read what comes before the answer. `inside`: the prompt has opened it."""
        source.start()
        yield from source.blanks()
        if not (yield from source.take(self.open)) and not inside:
            # No mark: what was read belongs to the answer.
            source.back()
            return
        yield from source.blanks()
        gap = ""

        def tell(piece: str) -> None:
            nonlocal gap
            # White space at the end belongs to the mark if that follows.
            piece = gap + piece
            kept = piece.rstrip()
            gap = piece[len(kept) :]
            out.reasoning(kept)

        yield from source.pass_to(tell, [self.close])
        yield from source.blanks()
        source.start()


@dataclass(frozen=True)
class Reading:
    """Of one request, for each of its choices."""

    tools: ToolFormat | None = None  # None leaves calls in the text
    thinking: Thinking | None = None  # None leaves reasoning in the text
    inside: bool = False  # whether the prompt has opened the reasoning
    most: int = 0  # calls that are told; others are dropped
    only: bool = False  # there is no text beside the calls

    @property
    def marks(self) -> frozenset[str]:
        """What must be read even if the model has special tokens for it."""
        tools = self.tools.marks if self.tools is not None else ()
        thinking = self.thinking
        return frozenset((*tools, *((thinking.open, thinking.close) if thinking else ())))

    def reader(self) -> Reader | None:
        """For one choice, None if its text is taken as it is."""
        return Reader(self) if self.tools is not None or self.thinking is not None else None


class Reader:
    """The one interface for streamed and whole answers: a whole answer is the stream, joined."""

    def __init__(self, reading: Reading) -> None:
        self._source = Source()
        new_id = reading.tools.new_id if reading.tools is not None else None
        self._listener = Listener(reading.most, only=reading.only, new_id=new_id)
        self._steps = _read(reading, self._source, self._listener)

    def push(self, text: str) -> Heard:
        """Add text."""
        self._source.add(text)
        next(self._steps, None)
        return self._listener.take()

    def last(self, text: str = "") -> Heard:
        """Add text after which no more comes; nothing is held back."""
        self._source.add(text)
        self._source.end()
        next(self._steps, None)
        self._listener.close()
        return self._listener.take()


def _read(reading: Reading, source: Source, out: Listener) -> Steps[None]:
    if reading.thinking is not None:
        yield from reading.thinking.read(source, out, inside=reading.inside)
    if reading.tools is not None:
        yield from reading.tools.read(source, out)
    yield from source.pass_to(out.text, ())
