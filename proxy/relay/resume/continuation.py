"""The stream of a worker that generates from tokens, as the rest of a chat that another began."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from protocol.decoding import decoded
from proxy.relay.response_validation import GIVEN_UP, refused_within
from proxy.relay.resume.progress import Chunks, Progress
from proxy.upstream.failures import CallFailed
from proxy.upstream.sse import END_MARK, data_of, events_of


class _Piece(msgspec.Struct):
    """A choice of `/inference/v1/generate` with `output_mode` `text`."""

    text: str
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Pieces(msgspec.Struct):
    choices: list[_Piece] = []
    error: Any = None


class Continuation:
    """Between a worker at `url`, which goes on after the tokens that are sure, and `show`.

    What the client has had of what came after those is made once more, and is not shown; it must be
    the same. Usage and end mark are left to others.
    """

    def __init__(
        self, url: str, progress: Progress, chunks: Chunks, show: Callable[[bytes], None]
    ) -> None:
        self._url = url
        self._progress = progress
        self._chunks = chunks
        self._show = show
        self._again = progress.tokens[progress.sure :]
        self._text_again = progress.since

    def feed(self, data: bytes) -> None:
        """Whole events. Raises `CallFailed` or `Refused` as soon as this stream cannot complete the
        answer: the client has had what came before."""
        shown: list[bytes] = []
        try:
            for event in events_of(data):
                if said := data_of(event):
                    shown += self._next(said)
        finally:
            if shown:
                self._show(b"".join(shown))

    def _next(self, said: bytes) -> list[bytes]:
        if said == END_MARK:
            if self._progress.finish is None:
                raise self._broken("ended its stream before the answer", "cut_short")
            return []
        pieces = decoded(said, _Pieces, fail=self._invalid)
        if pieces.error is not None:
            raise refused_within(self._url, pieces.error)
        return [chunk for piece in pieces.choices if (chunk := self._chunk(piece))]

    def _chunk(self, piece: _Piece) -> bytes:
        """What of it is new to the client, nothing if nothing is."""
        progress, ids, text = self._progress, piece.token_ids or [], piece.text
        known, known_text = min(len(ids), len(self._again)), min(len(text), len(self._text_again))
        same = ids[:known] == self._again[:known] and text.startswith(self._text_again[:known_text])
        if not same or progress.finish is not None:
            raise self._broken("does not go on where the stream broke", "diverged")
        if piece.finish_reason in GIVEN_UP:
            raise self._broken("gave the request up", "aborted")
        self._again, self._text_again = self._again[known:], self._text_again[known_text:]
        new, new_text = ids[known:], text[known_text:]
        # Of ids that come together it is not known which text is whose.
        sure = len(ids) == 1 and bool(text) and not (self._again or self._text_again)
        progress.add(new, new_text, sure=sure)
        progress.finish = piece.finish_reason
        if not (new or new_text or piece.finish_reason):
            return b""
        return self._chunks.delta(new_text, new, piece.finish_reason, piece.stop_reason)

    def _invalid(self, what: str) -> CallFailed:
        return self._broken(f"sent an event that is not valid: {what}", "garbage")

    def _broken(self, text: str, kind: str) -> CallFailed:
        return CallFailed(f"{self._url} {text}", kind)
