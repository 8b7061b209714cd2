"""How much runs at once, and how much of it a step that is being made up has taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.errors import ConfigError
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.request import Request

Unplace = Callable[[Request], None]
Awaits = Callable[[Request, Sequence[int]], bool]


def never(request: Request, matched: Sequence[int]) -> bool:
    """The `Awaits` of an engine whose KV lies in its pool alone."""
    return False


@dataclass(frozen=True)
class Limits:
    """What a step may compute."""

    max_num_seqs: int  # requests that run at once
    max_num_batched_tokens: int  # tokens of a step
    # No chunk may end inside a media span: its tokens see one another in both directions.
    whole_media: bool = False
    # Prompt tokens of a step in which requests decode, 0 for no bound.
    max_prefill_beside_decode: int = 0
    # Tokens that a choice may gain in one step, or in steps in a row, while all decode and none
    # waits.
    decode_steps: int = 1
    # Whether one with a LoRA adapter may gain several, too.
    adapted_decode_steps: bool = True
    # Of the tokens of a step, those of prompts that are scored: each takes a row of logits, which
    # is 0.6 MB for a vocabulary of 150,000 tokens.
    scored_tokens: int = 512
    # A prompt runs in one chunk: its tokens see one another in both directions.
    whole_prompts: bool = False

    def __post_init__(self) -> None:
        """`ConfigError` names the flag at fault: with less than this, some requests never run."""
        for name in ("max_num_seqs", "max_num_batched_tokens", "decode_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not positive")
        if self.max_prefill_beside_decode < 0:
            raise ConfigError(
                f"max_prefill_beside_decode: {self.max_prefill_beside_decode} is negative"
            )

    @property
    def whole_media_tokens(self) -> int:
        """Longest media span that fits a step even when every other request decodes beside it."""
        return self.max_num_batched_tokens - self.max_num_seqs

    @property
    def max_running(self) -> int:
        return min(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass
class Step:
    """A step that is being made up: `left` of its tokens are free, `prompts` of them for prompts,
    `scored` of those for prompts that are scored.
    `unplace` takes the blocks of a loading request back; `awaits` says of a request that could
    start from the `matched` blocks whether more of its KV is on its way from a lower tier."""

    left: int
    unplace: Unplace
    scored: int
    awaits: Awaits = never
    prompts: int = 0
    chunks: list[Chunk] = field(default_factory=list)  # what it computes so far

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.left -= chunk.count
        self.prompts -= chunk.count
        if chunk.request.scores_prompt:
            self.scored -= chunk.count

    def for_prompt(self, request: Request) -> int:
        """Tokens that the request's prompt may take."""
        return min(self.prompts, self.scored) if request.scores_prompt else self.prompts

    def remove(self, request: Request) -> None:
        """A request has lost its blocks to one that is older."""
        self.chunks = [chunk for chunk in self.chunks if chunk.request is not request]
