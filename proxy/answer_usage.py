"""The token counts that a relayed answer tells of, read from its end."""

from __future__ import annotations

import re

from protocol.request_record import RequestRecord

# A quote inside a JSON string has a backslash before it, so that no text looks like this.
_USAGE = b'"usage"'
_COUNT = re.compile(rb'"(prompt_tokens|completion_tokens|cached_tokens)"\s*:\s*(\d{1,12})')
# As vLLM and this project write it: reading that alone takes a third of the time.
_PLAIN = re.compile(
    rb'"usage": ?\{"prompt_tokens": ?(\d{1,12}), ?(?:"total_tokens": ?\d{1,12}, ?)?'
    rb'"completion_tokens": ?(\d{1,12})(?:, ?"total_tokens": ?\d{1,12})?\}'
).match
_FAR = 1024  # bytes behind its name in which a usage ends


def note_usage(record: RequestRecord) -> None:
    """Note the counts of the last usage in the record's `tail`, as far as they are not known."""
    for piece in reversed(record.tail):
        start = piece.rfind(_USAGE)
        if start < 0:
            continue
        if (plain := _PLAIN(piece, start)) is not None:
            record.prompt_tokens, record.completion_tokens = int(plain[1]), int(plain[2])
            return
        found = dict(_COUNT.findall(piece, start, start + _FAR))
        if not found:
            continue
        record.prompt_tokens = int(found.get(b"prompt_tokens", record.prompt_tokens))
        record.completion_tokens = int(found.get(b"completion_tokens", record.completion_tokens))
        if record.cached_tokens < 0:
            record.cached_tokens = int(found.get(b"cached_tokens", -1))
        return
