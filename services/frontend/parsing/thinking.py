"""What a model thinks before it answers, between two marks."""

from __future__ import annotations

from dataclasses import dataclass

from services.frontend.parsing.heard import Listener
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
            source.back()
            return
        yield from source.blanks()
        gap = ""

        def tell(piece: str) -> None:
            nonlocal gap
            piece = gap + piece
            kept = piece.rstrip()
            gap = piece[len(kept) :]
            out.reasoning(kept)

        yield from source.pass_to(tell, [self.close])
        yield from source.blanks()
        source.start()
