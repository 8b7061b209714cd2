"""Traces that others have published, from a file.

Mooncake      JSON lines: timestamp (ms), input_length, output_length, hash_ids, which name blocks
              of 512 tokens of the prompt, equal for equal prefixes
Azure 2023/24 CSV: TIMESTAMP (date and time), ContextTokens, GeneratedTokens
Azure 2025    the same with NumImages
BurstGPT      CSV: Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type;
              later releases also Session ID and Elapsed time (s)

Only Mooncake's says which prompts begin alike. Of Azure's no two do. Requests of one session of
BurstGPT's are taken to quote what came before, as far as they are long enough.
"""

from __future__ import annotations

import csv
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from benchmarks.simulate.prompts import Prompt, Session, TraceRequest

MOONCAKE_BLOCK = 512
_PICTURE_TOKENS = 576  # of a picture whose size Azure's trace does not tell, if there is room
_LEAST_THINK_S = 0.2
_CONTENT = 1 << 62


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One request of a recorded trace."""

    time: float  # when it came, s
    tokens: int  # of the prompt
    output: int  # tokens of the answer
    blocks: tuple[int, ...] = ()  # names of parts of the prompt, of `MOONCAKE_BLOCK` tokens each
    pictures: int = 0  # how many it brought
    session: str = ""  # the conversation that it belongs to, "" for none
    elapsed: float = 0.0  # seconds until its answer was there when it was recorded


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read(path: Path) -> list[TraceLine]:
    """Requests of a file in any of the formats, in order of time. `ValueError` names the line and
    the field that are wrong."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        text = file.read().splitlines()
    if not text:
        raise ValueError(f"{path}: no line of a trace")
    try:
        parsed = _json_lines(text) if text[0].lstrip().startswith("{") else _csv_lines(text)
        found = [line for line in parsed if line.output]  # BurstGPT has answers that failed
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not found:
        raise ValueError(f"{path}: no request has an answer")
    return sorted(found, key=lambda line: line.time)


def _json_lines(text: Sequence[str]) -> Iterator[TraceLine]:
    decoder = msgspec.json.Decoder(_Mooncake)
    for number, row in enumerate(text, start=1):
        if not row.strip():
            continue
        try:
            line = decoder.decode(row)
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number}: {error}") from None
        if line.input_length < 1 or line.output_length < 0:
            raise ValueError(f"line {number}: input_length or output_length is too small")
        if len(line.hash_ids) * MOONCAKE_BLOCK < line.input_length:
            raise ValueError(
                f"line {number}: hash_ids: {len(line.hash_ids)} blocks cannot hold "
                f"{line.input_length} tokens"
            )
        output = max(1, line.output_length)
        yield TraceLine(line.timestamp / 1e3, line.input_length, output, tuple(line.hash_ids))


def _csv_lines(text: Sequence[str]) -> Iterator[TraceLine]:
    rows = csv.DictReader(text)
    names = set(rows.fieldnames or ())
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= names:
        parse = _azure
    elif {"Timestamp", "Request tokens", "Response tokens"} <= names:
        parse = _burst
    else:
        raise ValueError(f"line 1: no known format has the columns {', '.join(sorted(names))}")
    for number, row in enumerate(rows, start=2):
        try:
            line = parse(row)
        except (ValueError, TypeError) as error:
            raise ValueError(f"line {number}: {error}") from None
        if line.output < 0 or line.pictures < 0 or line.tokens < (line.output > 0):
            raise ValueError(f"line {number}: a count of tokens or pictures is too small")
        yield line


def _azure(row: Mapping[str, str]) -> TraceLine:
    time = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()  # they have seven decimals
    pictures = int(row.get("NumImages") or 0)
    return TraceLine(
        time, int(row["ContextTokens"]), int(row["GeneratedTokens"]), pictures=pictures
    )


def _burst(row: Mapping[str, str]) -> TraceLine:
    session = row.get("Session ID") or ""
    return TraceLine(
        float(row["Timestamp"]), int(row["Request tokens"]), int(row["Response tokens"]),
        session=session if session not in ("-1", "nan") else "",
        elapsed=float(row.get("Elapsed time") or 0.0),
    )  # fmt: skip


def repeated(lines: Sequence[TraceLine], block_size: int, seed: int) -> Iterator[Session]:
    """The trace again and again at one request/s, from a place that the seed draws, each time with
    contents of its own."""
    first = lines[0].time
    length = (lines[-1].time - first) * len(lines) / max(1, len(lines) - 1) or 1.0
    begin = random.Random(f"{seed}/begin").randrange(len(lines))
    wrapped = [replace(line, time=line.time + length) for line in lines[:begin]]
    lines, first = [*lines[begin:], *wrapped], lines[begin].time
    for turn in itertools.count():
        rng = random.Random(f"{seed}/{turn}")
        for session in sessions(lines, block_size, rng.randrange(1 << 40), f"{turn}."):
            start = (session.start - first) / length + turn
            yield Session(start * len(lines), session.turns)


def sessions(
    lines: Iterable[TraceLine], block_size: int, salt: int, prefix: str = ""
) -> Iterator[Session]:
    """In order of their start. Contents differ from those of a call with another `salt`."""
    rng = random.Random(salt)
    grouped: dict[str, list[TraceLine]] = {}
    for number, line in enumerate(lines):
        grouped.setdefault(line.session or f"\0{number}", []).append(line)
    for number, members in enumerate(grouped.values()):
        turns = _turns(members, Prompt(block_size), rng, salt, f"{prefix}{number}")
        yield Session(members[0].time, tuple(turns))


def _turns(
    members: Sequence[TraceLine], history: Prompt, rng: random.Random, salt: int, name: str
) -> Iterator[TraceRequest]:
    ended = members[0].time
    for turn, line in enumerate(members):
        if history.tokens >= line.tokens:
            history = Prompt(history.block_size)  # it quotes no more than fits
        if line.blocks:
            _add_blocks(history, line, salt)
        else:
            _add_pictures(history, line, rng)
            history.add(rng.randrange(_CONTENT), line.tokens - history.tokens)
        think = max(_LEAST_THINK_S, line.time - ended) if turn else 0.0
        ended = line.time + line.elapsed
        yield history.request(
            f"{name}.{turn}", rng.randrange(_CONTENT), max(2, line.output), line.session, think
        )


def _add_blocks(prompt: Prompt, line: TraceLine, salt: int) -> None:
    for place, block in enumerate(line.blocks):
        tokens = min(MOONCAKE_BLOCK, line.tokens - place * MOONCAKE_BLOCK)
        if tokens > 0:
            prompt.add((block ^ salt << 22) % _CONTENT, tokens)


def _add_pictures(prompt: Prompt, line: TraceLine, rng: random.Random) -> None:
    """As many as it has, of one size each, that leave at least one token of text."""
    if line.pictures:
        room = (line.tokens - prompt.tokens - 1) // line.pictures
        for _ in range(line.pictures if room > 0 else 0):
            prompt.add_picture(rng.randrange(_CONTENT), min(_PICTURE_TOKENS, room))
