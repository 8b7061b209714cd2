"""What a client has had of a stream that may have to be resumed, and the chunks that follow it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder()
DONE = b"data: [DONE]\n\n"


@dataclass
class Progress:
    """What a client has had.

    `head`: the fields that all chunks of the stream have, None before the first.
    `prompt`: token ids of the prompt, as the worker has told them.
    `tokens`: ids of all tokens that the client has had.
    `sure`: after so many of them it has had their whole text.
    `since`: what it has had of the text of those that follow.
    `finish`: the answer's finish reason, None while it goes on.
    `exact`: nothing has come that another worker would not say in the same way.
    `counted`: the usage has come.
    `fingerprint`: the worker's `system_fingerprint`, "" if it tells none.
    """

    # A token may hold back the first bytes of a character, alone or behind others that came with
    # it: hence `sure` and `since`.

    head: dict[str, Any] | None = None
    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sure: int = 0
    since: str = ""
    finish: str | None = None
    exact: bool = True
    counted: bool = False
    fingerprint: str = ""

    @property
    def resumable(self) -> bool:
        return self.exact and self.head is not None

    def add(self, token_ids: list[int], text: str, *, sure: bool) -> None:
        """`sure`: that text is all of the tokens' so far."""
        self.tokens += token_ids
        self.since += text
        if sure:
            self.sure, self.since = len(self.tokens), ""


@dataclass(frozen=True)
class Chunks:
    """Chunks as vLLM writes them, whose fields come in this order. `ids`: the client has asked for
    token ids; `usage`: for usage."""

    head: dict[str, Any]
    ids: bool
    usage: bool
    fingerprint: str

    def delta(
        self, text: str, token_ids: list[int], finish: str | None, stop: int | str | None
    ) -> bytes:
        """More text, `finish` and `stop` reasons with the last of it."""
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"content": text},
            "logprobs": None,
            "finish_reason": finish,
        }
        if finish is not None:
            choice["stop_reason"] = stop
        choice["token_ids"] = token_ids if self.ids else None
        last = finish is not None and not self.usage
        return self._event({"choices": [choice]}, fingerprint=last)

    def counts(self, prompt: int, completion: int) -> bytes:
        """The usage, in tokens."""
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        return self._event({"choices": [], "usage": usage}, fingerprint=True)

    def _event(self, fields: dict[str, Any], *, fingerprint: bool) -> bytes:
        chunk = {**self.head, **fields}
        if fingerprint and self.fingerprint:
            chunk["system_fingerprint"] = self.fingerprint
        return b"data: %b\n\n" % _ENCODER.encode(chunk)
