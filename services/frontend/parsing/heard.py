"""What a reader hears in an answer: text, reasoning, and calls as they grow."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
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
class Said:
    """A piece of text for the client to read, or of what the model `thought` before."""

    text: str
    thought: bool = False


Part = Said | CallPiece


@dataclass(frozen=True)
class Heard:
    """`parts`: in the order in which the model wrote them; no two that could be one."""

    parts: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        """For the client to read."""
        return "".join(p.text for p in self.parts if isinstance(p, Said) and not p.thought)

    @property
    def reasoning(self) -> str:
        if not self.parts:  # as for each token of most answers
            return ""
        return "".join(p.text for p in self.parts if isinstance(p, Said) and p.thought)

    @property
    def calls(self) -> tuple[CallPiece, ...]:
        """For the client to make."""
        if not self.parts:
            return ()
        return tuple(part for part in self.parts if isinstance(part, CallPiece))

    def without_reasoning(self) -> Heard:
        return Heard(tuple(p for p in self.parts if isinstance(p, CallPiece) or not p.thought))


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
        self._parts: list[Part] = []

    def text(self, piece: str) -> None:
        """Add text for the client to read."""
        if self._only:
            return
        piece = self._gap + piece
        kept = piece.rstrip()
        self._gap = piece[len(kept) :]
        self._say(kept)

    def reasoning(self, piece: str) -> None:
        """Add what the model thinks before it answers."""
        self._say(piece, thought=True)

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
            self._say(self._gap)
        self._gap = ""

    def take(self) -> Heard:
        """What has been heard since the last time."""
        heard = Heard(tuple(_joined(self._parts)))
        self._parts = []
        return heard

    def _say(self, text: str, *, thought: bool = False) -> None:
        if text:
            self._parts.append(Said(text, thought))

    def _tell(self, piece: CallPiece) -> None:
        if piece.index < self._most:
            self._parts.append(piece)


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Neighbours of one kind, or of one call, as one."""
    for _, group in itertools.groupby(parts, key=_kind):
        yield _one(list(group))


def _kind(part: Part) -> tuple[bool, int]:
    if isinstance(part, Said):
        return part.thought, -1
    return False, part.index


def _one(parts: Sequence[Part]) -> Part:
    first = parts[0]
    if isinstance(first, Said):
        return replace(first, text="".join(p.text for p in parts if isinstance(p, Said)))
    arguments = "".join(p.arguments for p in parts if isinstance(p, CallPiece))
    return replace(first, arguments=arguments)
