"""Which token stands where: a pure function of what was asked, so that any worker can go on."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blake3 import blake3

from protocol.types import MMItem, SamplingParams

_MASK = (1 << 64) - 1


def prompt_digest(token_ids: Sequence[int], items: Iterable[MMItem] = ()) -> int:
    """64 bits over the prompt and the media in it (mm_hash and offset)."""
    hasher = blake3(array("q", token_ids).tobytes())
    for item in items:
        hasher.update(f"|{item.offset}:{item.mm_hash}".encode())
    return int.from_bytes(hasher.digest(8), "little")


def _mixed(value: int) -> int:
    """SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def seed_of(sampling: SamplingParams) -> int:
    """Greedy sampling has no randomness; a seed that is not given counts as 0."""
    return 0 if sampling.greedy or sampling.seed is None else sampling.seed


@dataclass(frozen=True)
class Vocabulary:
    """Tokens first, first + 1, … first + count − 1 are what answers are made of."""

    first: int = 97
    count: int = 26

    def tokens(self, digest: int, seed: int, choice: int, start: int, count: int) -> list[int]:
        """The tokens of `choice` at output positions start … start + count − 1."""
        # Positions stay far below 2**40: no two choices ever have the same state.
        state = _mixed(digest ^ _mixed(seed & _MASK)) ^ (choice << 40)
        first, span = self.first, self.count
        return [first + _mixed(state ^ i) % span for i in range(start, start + count)]

    def answer(
        self,
        token_ids: Sequence[int],
        items: Iterable[MMItem] = (),
        *,
        length: int,
        seed: int = 0,
        choice: int = 0,
    ) -> list[int]:
        """The first `length` tokens of an answer that nothing stops earlier."""
        return self.tokens(prompt_digest(token_ids, items), seed, choice, 0, length)
