"""Special tokens in a client's strings stay plain text: no client can fake a picture or a turn.

The first character of every special token that a client's string contains, or may begin (its end is
the beginning of one, and the next string could complete it), is replaced by a private character
before the chat template runs. What the template itself writes can then be told from what the client
wrote, and the prompt is cut inside the client's tokens before it is tokenized. Replacing one
character by one keeps lengths, trimming and comparisons in the template as they were. Strings
without such tokens, which is nearly all of them, pass untouched.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PRIVATE_START, _PRIVATE_SIZE = 0xF0000, 0xFFFE  # plane 15, which has no characters of its own


@dataclass(frozen=True)
class Guarded:
    """A prompt in the client's own characters.

    `written`: offsets of the wanted tokens where the template wrote them, in order.
    `cuts`: offsets at which to cut the text before tokenizing it.
    `tokens`: which of the wanted ones stands at each of `written`; () if all are the first.
    """

    text: str
    written: tuple[int, ...]
    cuts: tuple[int, ...]
    tokens: tuple[str, ...] = ()


class Guard:
    def __init__(self, tokens: Iterable[str]) -> None:
        """`tokens` to protect. A token of one character or of blanks only cannot be protected."""
        # One character has no place inside at which to cut it.
        self._tokens = frozenset(token for token in tokens if len(token) > 1 and token.strip())
        self._lengths = sorted({len(token) for token in self._tokens})
        self._prefixes = frozenset(t[:n] for t in self._tokens for n in range(1, len(t)))
        self._firsts = tuple(sorted({token[0] for token in self._tokens}))

    def marker(self, values: Any) -> Marker:
        """What protects the strings in `values`, any JSON value (dict keys included)."""
        strings = list(_strings(values))
        found = sorted({s[place] for s in strings for place in self.suspects(s)})
        return Marker(self, dict(zip(found, _unused(strings, len(found)), strict=True)))

    def suspects(self, text: str) -> list[int]:
        """Offsets at which a special token starts or may start."""
        places: list[int] = []
        for first in self._firsts:
            if first in text:
                places += self._suspects(text, first)
        return places

    def _suspects(self, text: str, first: str) -> Iterator[int]:
        # A template may trim the string before it puts the next one behind it.
        ends = {len(text), len(text.rstrip())}
        place = text.find(first)
        while place >= 0:
            if self.token_starts(text, place) or any(self._may_start(text, place, e) for e in ends):
                yield place
            place = text.find(first, place + 1)

    def token_starts(self, text: str, place: int) -> bool:
        return any(text[place : place + length] in self._tokens for length in self._lengths)

    def _may_start(self, text: str, place: int, end: int) -> bool:
        return end - place < self._lengths[-1] and text[place:end] in self._prefixes


@dataclass(frozen=True)
class Marker:
    """The marks of one request: private characters that stand for the first ones of tokens."""

    guard: Guard
    marks: Mapping[str, str]

    def mark(self, value: Any) -> Any:
        """`value` with its strings protected."""
        if not self.marks:
            return value
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.mark(entry) for entry in value]
        return value

    def _mark_text(self, text: str) -> str:
        places = self.guard.suspects(text)
        if not places:
            return text
        chars = list(text)
        for place in places:
            chars[place] = self.marks[text[place]]
        return "".join(chars)

    def unmark(self, rendered: str, *wanted: str) -> Guarded:
        """Undo the marking of a rendered prompt. `wanted`: the tokens to find; "" is none."""
        text = rendered
        for mark in self.marks.values():
            # `tojson` with ensure_ascii writes a character beyond the BMP as two surrogates.
            text = text.replace(_escaped(mark), mark)
        # While the client's tokens are marked: only those that the template wrote are found.
        found = sorted((place, token) for token in wanted for place in _offsets(text, token))
        places: list[int] = []
        for mark in self.marks.values():
            places += _offsets(text, mark)
        text = text.translate({ord(mark): char for char, mark in self.marks.items()})
        # Behind the first character, which keeps the token from being formed.
        cuts = (place + 1 for place in sorted(places) if self.guard.token_starts(text, place))
        written, tokens = (place for place, _ in found), (token for _, token in found)
        return Guarded(text, tuple(written), tuple(cuts), tuple(tokens))


def _unused(strings: Sequence[str], count: int) -> list[str]:
    """`count` random private characters that no string contains."""
    marks: list[str] = []
    while len(marks) < count:
        # Drawn anew for each request: a client that could foresee it could write it.
        mark = chr(_PRIVATE_START + secrets.randbelow(_PRIVATE_SIZE))
        if mark not in marks and not any(mark in string for string in strings):
            marks.append(mark)
    return marks


def _escaped(mark: str) -> str:
    """The two surrogates as which a template may have written the mark in JSON."""
    digits = mark.encode("utf-16-be").hex()
    return f"\\u{digits[:4]}\\u{digits[4:]}"


def _offsets(text: str, wanted: str) -> list[int]:
    """Where `wanted` stands in `text`, from left to right and without overlap."""
    places: list[int] = []
    place = text.find(wanted) if wanted else -1
    while place >= 0:
        places.append(place)
        place = text.find(wanted, place + len(wanted))
    return places


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _strings(key)
            yield from _strings(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _strings(entry)
