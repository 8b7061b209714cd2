"""Text of tokens that come one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

BROKEN = "\N{REPLACEMENT CHARACTER}"
CONTEXT = 16  # tokens of a prompt's end, by which its answer is decoded
IN_CHARACTER = 3  # bytes of a character before its last one, each a token of its own
_MOST_PENDING = 64  # tokens without a text of their own; each further one decodes them all


class Detokenizer:
    """Text of a growing token list; what it has given out never changes and never ends in half a
    character. All it gives is `decode` of the whole list without a broken end, except where a
    byte-fallback vocabulary spells bytes that are no UTF-8: there `decode` takes text back. An end
    of more than `_MOST_PENDING` tokens that is all broken is given but for the last few.
    """

    def __init__(
        self, backend: Backend, skipped: frozenset[int], after: Sequence[int] = ()
    ) -> None:
        """`skipped`: all special tokens, or none. `after`: tokens that the list follows, whose text
        is not given: decoders of SentencePiece's take the blank before a text's first word away."""
        self._backend = backend
        self._skipped = skipped
        self._context = self._end_of(after)
        self._stream = self._begun(self._context)
        self._pending: list[int] = []

    def _end_of(self, token_ids: Sequence[int]) -> list[int]:
        """The last tokens, [] if they end within a character: its rest is no text of an answer."""
        # Byte fallback breaks a run of bytes as a whole if it begins within a character.
        for more in range(IN_CHARACTER + 1):
            end = list(token_ids[-CONTEXT - more :])
            if not self._decode(end).endswith(BROKEN):
                return end
        return []

    def push(self, token_id: int) -> str:
        """The text that became certain with this token, "" while a character is incomplete."""
        if token_id in self._skipped:
            return ""
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._backend, token_id)
        except Exception:  # the library's own and only class; the text it gave out has changed
            return self._restart()
        if text is None:
            return "" if len(self._pending) < _MOST_PENDING else self._settle()
        self._context, self._pending = self._pending, []
        return text

    def flush(self) -> str:
        """The text of what is held back, without an incomplete character at its end."""
        if not self._pending:
            return ""
        tail = self._text(self._pending)
        self._pending = []
        return tail.rstrip(BROKEN)

    def _settle(self) -> str:
        """The text of pending tokens that no further one changes, broken as it is: all but the last
        few, which a character may begin with."""
        whole = len(self._text(self._pending))
        for kept in range(1, IN_CHARACTER + 1):
            done, rest = self._pending[:-kept], self._pending[-kept:]
            text = self._text(done)
            # A character that is cut in two is broken twice.
            if len(text) + len(self._text(rest)) == whole:
                break
        self._stream, self._pending = self._begun(self._context), rest
        for token_id in rest:
            text += self._stream.step(self._backend, token_id) or ""
        return text

    def _restart(self) -> str:
        text = self._decode(self._pending).rstrip(BROKEN)
        self._stream = self._begun(self._pending)
        self._context, self._pending = self._pending, []
        return text

    def _begun(self, context: list[int]) -> DecodeStream:
        return DecodeStream(ids=context, skip_special_tokens=bool(self._skipped))

    def _text(self, token_ids: list[int]) -> str:
        """Of tokens that follow the context."""
        before = self._decode(self._context)
        after = self._decode(self._context + token_ids)
        return after[len(before) :] if after.startswith(before) else self._decode(token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=bool(self._skipped))
