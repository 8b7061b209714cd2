"""Rules of a Lark grammar, as llguidance reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from protocol.errors import InvalidRequest

MAX_CHARS = 1 << 16  # of a grammar, whose check takes time with its length
# A blank, or a line's end and its indentation: with more, weak models never come to an end.
GAP = r" |\r?\n[ \t]{0,32}"
_SHARED = ("$defs", "definitions")


class Rules:
    """`token_id`: the id of a text that is one token of the vocabulary, None if it is none."""

    def __init__(self, token_id: Callable[[str], int | None]) -> None:
        self._token_id = token_id
        self._lines: list[str] = []
        self._num_chars = 0

    def is_token(self, text: str) -> bool:
        return self._token_id(text) is not None

    def mark(self, text: str) -> str:
        """A text that models write as one token where they have it."""
        # <[5]> is llguidance's word for the token 5.
        found = self._token_id(text)
        return quoted(text) if found is None else f"<[{found}]>"

    def add(self, name: str, terms: str) -> None:
        """`InvalidRequest` if the rules become too many."""
        # Many rules may have the same definitions in them: they are not to be in memory together.
        self._num_chars += len(terms)
        if self._num_chars > MAX_CHARS:
            raise InvalidRequest(
                f"tools: the grammar of forced calls has more than {MAX_CHARS} characters",
                param="tools",
            )
        self._lines.append(f"{name}: {terms}")

    def new(self, terms: str) -> str:
        """A rule of its own; its name."""
        name = f"rule{len(self._lines)}"
        self.add(name, terms)
        return name

    def terminal(self, terms: str) -> str:
        """A terminal of its own; its name."""
        name = f"TEXT{len(self._lines)}"
        self.add(name, terms)
        return name

    def one_of(self, texts: Iterable[str]) -> str:
        """One of some texts, as a term."""
        # One terminal: of terms, llguidance follows at most 2000 at a time.
        return self.terminal(" | ".join(map(quoted, texts)))

    def json(self, schema: Mapping[str, Any]) -> str:
        """A JSON value of that schema; what cannot be enforced in it is ignored."""
        spaced = {**schema, "x-guidance": {"whitespace_pattern": GAP, "lenient": True}}
        return self.new(f"%json {msgspec.json.encode(spaced).decode()}")

    def text_before(self, mark: str) -> str:
        """Any text, then `mark`."""
        if self._token_id(mark) is not None:
            # Text that is spelled out never matches a token that is named.
            return f"{self.terminal('/(?s:.*)/')} {self.mark(mark)}"
        name = f"text{len(self._lines)}"
        self.add(f"{name}[suffix={quoted(mark)}]", "/(?s:.*)/")
        return name

    def lark(self) -> str:
        return "\n".join(self._lines)


def quoted(text: str) -> str:
    """`text` as a term of a grammar."""
    # Lark escapes in strings what JSON does.
    spelled: str = msgspec.json.encode(text).decode()
    return spelled


def either(terms: Iterable[str]) -> str:
    return f"({' | '.join(terms)})"


def shared(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What references in a schema point to, which must stand at the root."""
    return {key: schema[key] for key in _SHARED if key in schema}
