"""Token ids noted from a stream on its way to a client that may not have asked for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from proxy.relay.resume.progress import Progress
from proxy.upstream.failures import CallFailed
from proxy.upstream.sse import END_MARK, data_of, events_of

# What a chunk says of itself, or a stream only once.
_NOT_HEAD = frozenset(("choices", "usage", "prompt_token_ids", "prompt_text", "metrics"))
# A quote inside a JSON string has a backslash before it, so that no text looks like these. The
# first of them is that of `prompt_token_ids` too.
_IDS = re.compile(rb'token_ids":\s*\[[\d,\s]*\]')
_NAME, _NO_IDS = b"token_ids", b'token_ids":null'
_NOTHING, _GOES_ON = b'"delta":{}', b'"finish_reason":null'


class _Choice(msgspec.Struct):
    index: int
    delta: dict[str, Any]
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    prompt_token_ids: list[int] | None = None
    system_fingerprint: str | None = None


_DECODER = msgspec.json.Decoder(_Chunk)


class Recorder:
    """Between a worker at `url` and `show`, which has the client see events. `asked`: the client
    wants the token ids itself; else it sees the stream as it is without them."""

    def __init__(self, url: str, show: Callable[[bytes], None], *, asked: bool) -> None:
        self.progress = Progress()
        self.asked = asked
        self._url = url
        self._show = show

    def feed(self, data: bytes) -> None:
        """Whole events. Raises `CallFailed` at one that ends the stream before the answer is
        complete: the client has had those before it, but not that one."""
        # Without this check an event of a slow stream takes 1 µs more (docs/benchmarks/proxy.md).
        if not self.progress.exact and _NAME not in data:
            self._show(data)
            return
        shown: list[bytes] = []
        try:
            for event in events_of(data):
                # Once inexact, for good: the rest of the stream goes through without being decoded.
                if self.progress.exact:
                    self._note(data_of(event))
                if event := self._bare(event):
                    shown.append(event)
        finally:
            if shown:
                self._show(b"".join(shown))

    def _bare(self, event: bytes) -> bytes:
        """As it is where token ids are not asked for; empty if there is no such event then."""
        if self.asked:
            return event
        if _NOTHING in event and _GOES_ON in event:
            return b""
        return _IDS.sub(_NO_IDS, event)

    def _note(self, said: bytes) -> None:
        progress = self.progress
        if said == END_MARK:
            if progress.head is not None and progress.finish is None:
                raise CallFailed(f"{self._url} ended its stream before the answer", "cut_short")
            return
        if not said:
            return
        chunk = self._decoded(said)
        if chunk is None:
            progress.exact = False
        elif progress.head is None:
            self._begin(said, chunk)
        if chunk is not None and progress.exact:
            self._count(chunk)

    def _decoded(self, said: bytes) -> _Chunk | None:
        """None if it is JSON of some other kind."""
        try:
            return _DECODER.decode(said)
        except msgspec.ValidationError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = f"{self._url} sent an event that is not valid JSON: {error}"
            raise CallFailed(text, "garbage") from None

    def _begin(self, said: bytes, chunk: _Chunk) -> None:
        head: dict[str, Any] = msgspec.json.decode(said)
        self.progress.head = {k: v for k, v in head.items() if k not in _NOT_HEAD}
        self.progress.prompt = chunk.prompt_token_ids or []
        self.progress.exact = bool(chunk.prompt_token_ids)

    def _count(self, chunk: _Chunk) -> None:
        progress = self.progress
        progress.fingerprint = chunk.system_fingerprint or progress.fingerprint
        if not chunk.choices:
            progress.counted = progress.counted or chunk.usage is not None
            return
        choice = chunk.choices[0]
        text, token_ids = choice.delta.get("content") or "", choice.token_ids or []
        progress.exact = (
            len(chunk.choices) == 1
            and choice.index == 0
            and chunk.usage is None
            and progress.finish is None
            and isinstance(text, str)
            and bool(token_ids or not text)
            and not any(value for k, value in choice.delta.items() if k not in ("role", "content"))
        )
        if progress.exact:
            progress.add(token_ids, text, sure=len(token_ids) == 1 and bool(text))
            progress.finish = choice.finish_reason
