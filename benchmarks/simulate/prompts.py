"""Requests of a trace: how long, which blocks, which pictures. Contents are numbers, not tokens."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from blake3 import blake3

PATCHES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Picture:
    """`tokens` placeholders from token `offset` on."""

    mm_hash: str
    offset: int
    tokens: int

    @property
    def end(self) -> int:
        return self.offset + self.tokens


@dataclass(eq=False, slots=True)
class TraceRequest:
    """A request of a trace."""

    name: str  # its id
    think_s: float  # seconds from the end of the answer before it in its session to its arrival
    tokens: int  # of the prompt
    output: int  # tokens that follow it
    block_size: int  # tokens to a block
    keys: list[bytes]  # of every full block of prompt and output
    items: tuple[Picture, ...] = ()  # its pictures
    session: str = ""  # the conversation that it belongs to, "" for none
    short: list[int] = field(init=False)  # the keys as events and the master have them
    prompt_keys: list[bytes] = field(init=False)  # those of the prompt's blocks
    prompt_short: list[int] = field(init=False)  # the same as events have them

    def __post_init__(self) -> None:
        full = self.tokens // self.block_size
        self.short = short_keys(self.keys)
        self.prompt_keys, self.prompt_short = self.keys[:full], self.short[:full]


def short_keys(keys: Sequence[bytes]) -> list[int]:
    """`protocol.kv_events.short_key` of many keys of 8 bytes."""
    return list(struct.unpack(f">{len(keys)}Q", b"".join(keys)))


@dataclass(slots=True)
class Prompt:
    """Grows by contents: equal contents in equal order give equal block keys."""

    block_size: int
    tokens: int = 0
    keys: list[bytes] = field(default_factory=list)
    items: list[Picture] = field(default_factory=list)
    _pieces: bytearray = field(default_factory=bytearray)

    def add(self, content: int, tokens: int) -> None:
        """`tokens` tokens of which `content`, below 2**63, says what they are."""
        done = 0
        while done < tokens:
            taken = min(tokens - done, self.block_size - self.tokens % self.block_size)
            self._pieces += content.to_bytes(8, "little") + done.to_bytes(4, "little")
            done += taken
            self.tokens += taken
            if self.tokens % self.block_size == 0:
                self._close()

    def _close(self) -> None:
        parent = self.keys[-1] if self.keys else b""
        self.keys.append(blake3(parent + self._pieces).digest(8))
        self._pieces.clear()

    def add_picture(self, number: int, tokens: int) -> None:
        self.items.append(Picture(f"{number:016x}", self.tokens, tokens))
        self.add(number, tokens)

    def copy(self) -> Prompt:
        """A prompt that begins as this one."""
        return Prompt(
            self.block_size, self.tokens, list(self.keys), list(self.items), self._pieces[:]
        )

    def request(
        self, name: str, answer: int, output: int, session: str = "", think_s: float = 0.0
    ) -> TraceRequest:
        """This prompt, answered by `output` tokens of content `answer`, which are added to it."""
        tokens, items = self.tokens, tuple(self.items)
        self.add(answer, output)
        return TraceRequest(
            name, think_s, tokens, output, self.block_size, list(self.keys), items, session
        )


@dataclass(frozen=True, slots=True)
class Session:
    """Requests one after the other, each of which may quote the answers before it. The first
    arrives at `start`, in seconds at one request/s on the whole."""

    start: float
    turns: tuple[TraceRequest, ...]
