"""What a reader hears in an answer: text, reasoning, and calls as they grow."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace


def new_call_id() -> str:
    """As OpenAI's are."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True)
class CallPiece:
    """A piece of a call. The first one has id and name, each may have a piece of the arguments."""

    index: int  # of the call in its choice
    arguments: str = ""
    id: str = ""
    name: str = ""


@dataclass(frozen=True)
class Heard:
    """`text` is for the client to read, `calls` are for it to make."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()


class Listener:
    """Collects what a reader tells it, until it is taken.

    White space beside a call is dropped: it belongs to the call's form. `most` calls are heard,
    others are dropped. If the answer is held to calls `only`, there is no text. `new_id` names a
    call.
    """

    def __init__(
        self, most: int, *, only: bool = False, new_id: Callable[[], str] | None = None
    ) -> None:
        self._new_id = new_id or new_call_id
        self._most = most
        self._only = only
        self._begun = 0
        self._gap = ""  # white space that may stand before a call
        self._bare = False  # whether the call that is heard has no arguments yet
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[CallPiece] = []

    def text(self, piece: str) -> None:
        """Add text for the client to read."""
        if self._only:
            return
        piece = self._gap + piece
        kept = piece.rstrip()
        self._gap = piece[len(kept) :]
        self._text.append(kept)

    def reasoning(self, piece: str) -> None:
        """Add what the model thinks before it answers."""
        self._reasoning.append(piece)

    def begin(self, name: str) -> None:
        """A call, whose arguments follow."""
        self._gap = ""
        self._bare = True
        self._tell(CallPiece(self._begun, "", self._new_id(), name))
        self._begun += 1

    def arguments(self, piece: str) -> None:
        """Add to the arguments of the call that was begun last: JSON text."""
        if piece:
            self._bare = False
            self._tell(CallPiece(self._begun - 1, piece))

    def end(self) -> None:
        """The end of the call that was begun last."""
        if self._bare:
            self.arguments("{}")

    def close(self) -> None:
        """No more comes."""
        # White space behind a call belongs to its form; without calls it is text.
        if not self._begun:
            self._text.append(self._gap)
        self._gap = ""

    def take(self) -> Heard:
        """What has been heard since the last time."""
        heard = Heard("".join(self._text), "".join(self._reasoning), tuple(_joined(self._calls)))
        self._text, self._reasoning, self._calls = [], [], []
        return heard

    def _tell(self, piece: CallPiece) -> None:
        if piece.index < self._most:
            self._calls.append(piece)


def _joined(pieces: Iterable[CallPiece]) -> Iterator[CallPiece]:
    """One piece for each call."""
    for _, group in itertools.groupby(pieces, key=lambda piece: piece.index):
        first, *more = group
        rest = "".join(piece.arguments for piece in more)
        yield replace(first, arguments=first.arguments + rest)
