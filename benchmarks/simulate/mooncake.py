"""Mooncake's public traces: JSON lines of `timestamp` (ms), `input_length`, `output_length` and
`hash_ids`, which name the prompt's blocks of 512 tokens, equal for equal prefixes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from benchmarks.simulate.prompts import Prompt, TraceRequest

BLOCK = 512
_ANSWERS = 1 << 62


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read(lines: Iterable[str | bytes], block_size: int) -> list[TraceRequest]:
    """Requests in order of arrival, the first at 0. `ValueError` names a line that makes no sense.

    Blocks may be of any size: a block of the trace becomes as many as it has tokens for. Answers
    are taken to be different from each other.
    """
    decoder = msgspec.json.Decoder(_Line)
    found: list[TraceRequest] = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number}: {error}") from None
        found.append(_request(line, number, block_size))
    found.sort(key=lambda request: request.arrival)
    first = found[0].arrival if found else 0.0
    for request in found:
        request.arrival -= first
    return found


def _request(line: _Line, number: int, block_size: int) -> TraceRequest:
    if line.input_length < 1 or line.output_length < 0:
        raise ValueError(f"line {number}: a prompt has at least one token, an answer none or more")
    if len(line.hash_ids) * BLOCK < line.input_length:
        raise ValueError(
            f"line {number}: {len(line.hash_ids)} blocks cannot hold {line.input_length} tokens"
        )
    prompt = Prompt(block_size)
    for place, name in enumerate(line.hash_ids):
        tokens = min(BLOCK, line.input_length - place * BLOCK)
        if tokens > 0:
            prompt.add(name, tokens)
    output = max(2, line.output_length)
    return prompt.request(f"r{number}", line.timestamp / 1e3, _ANSWERS + number, output, "")
