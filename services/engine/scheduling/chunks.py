"""What one step computes, and whether it is more than any before it did."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from services.engine.scheduling.request import Request

_SLACK = 1.25  # contexts grow by a token a step


# A struct, not a dataclass: each request of each step makes one or two, and 256 of them would take
# a millisecond more.
class Chunk(msgspec.Struct, frozen=True):
    """Tokens start … start + count − 1 of a request, and the choices that sample after them.

    A draft is computed in the same step, so that as many tokens as were guessed rightly are gained
    too.
    """

    request: Request  # whose tokens they are
    start: int  # the first of them, counted from the start of the prompt
    count: int  # how many are computed
    samplers: tuple[Request, ...] = ()  # choices that draw a token from the last one's logits
    steps: int = 1  # that it stands for: tokens that a choice gains, each from the one before
    room: int = 0  # further tokens that there are blocks for, which may be guessed
    draft: tuple[int, ...] = ()  # those that have been guessed

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def width(self) -> int:
        """Tokens that are computed, guessed ones included."""
        return self.count + len(self.draft)

    @property
    def reach(self) -> int:
        """First token behind those that are computed."""
        return self.start + self.width

    @property
    def token_ids(self) -> list[int]:
        """The tokens that are computed."""
        return [*self.request.tokens[self.start : self.end], *self.draft]

    @property
    def decodes(self) -> bool:
        """Whether it goes on after a token that was put out; else it computes a prompt."""
        return self.count == 1 and self.start >= self.request.num_prompt


class Work(NamedTuple):
    """What a step does: `computed` tokens of prompts whose first `reused` were known, and one token
    each for `requests` others that have `context` tokens in all."""

    computed: int = 0
    reused: int = 0
    requests: int = 0
    context: int = 0


def work_of(chunks: Sequence[Chunk]) -> Work:
    """To be asked before the chunks are run."""
    computed = reused = requests = context = 0
    for chunk in chunks:
        if chunk.decodes:
            requests += 1
            context += chunk.end
        else:
            computed += chunk.count
            # Counted once, with the first chunk behind the known prefix.
            reused += chunk.start if chunk.start == chunk.request.num_cached else 0
    return Work(computed, reused, requests, context)


def amounts_of(chunks: Sequence[Chunk], work: Work) -> dict[Hashable, int]:
    """Of what makes a step of these chunks take long; `work` is theirs."""
    attended = media = drafted = 0
    kinds: set[Hashable] = set()
    for chunk in chunks:
        sampling = chunk.request.sampling
        drafted += len(chunk.draft)
        # The first step with a new combination may compile or load what that needs.
        kinds.add(
            (chunk.steps, chunk.request.adapter is None, sampling.grammar == "",
             sampling.logprobs is None, sampling.greedy, sampling.beam_width)
        )  # fmt: skip
        if not chunk.decodes:
            attended += chunk.count * chunk.end
            media += len(chunk.request.source.mm_items)
            kinds.add(sampling.prompt_logprobs is None)
    found: dict[Hashable, int] = dict.fromkeys(kinds, 1)
    found |= {
        "prompt tokens": work.computed, "attended by prompts": attended, "media": media,
        "requests that decode": work.requests, "their context": work.context, "drafts": drafted,
    }  # fmt: skip
    return found


def chunk_of(request: Request, count: int) -> Chunk:
    """The request's next `count` tokens; it samples if they reach the end of what is known."""
    start = request.num_computed
    samplers = (request,) if start + count == len(request.tokens) else ()
    return Chunk(request, start, count, samplers)


class StepSizes:
    """The largest amount of each kind of work that a step has ended with. The engine's thread
    writes, another one reads `new`."""

    def __init__(self) -> None:
        self._largest: dict[Hashable, int] = {}
        self._doing: dict[Hashable, int] = {}
        self.new = False
        """Whether the step under way does what no step has done yet: work of another kind, or a
        quarter more of it. Kernels may have to be compiled for that, and memory to be found."""

    def begin(self) -> None:
        self._doing, self.new = {}, False

    def does(self, amounts: Mapping[Any, int]) -> None:
        """The step under way does this too."""
        for kind, amount in amounts.items():
            self._doing[kind] = done = self._doing.get(kind, 0) + amount
            self.new |= done > _SLACK * self._largest.get(kind, 0)

    def does_else(self) -> None:
        """The step under way does what cannot be foreseen, as loading an adapter."""
        self.new = True

    def end(self) -> None:
        for kind, amount in self._doing.items():
            self._largest[kind] = max(amount, self._largest.get(kind, 0))
        self.begin()
