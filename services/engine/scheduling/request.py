"""One choice of one request inside the engine."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from protocol.keys import BlockKeyChain
from protocol.refs import wants_remote_decode
from protocol.types import GenerateRequest, MMItem, PositionLogprobs, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Status(enum.Enum):
    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    FINISHED = "finished"


RequestKey = tuple[str, int]
Order = tuple[float, int, int]


class Constraint(Protocol):
    """One choice's way through a grammar."""

    @property
    def ready(self) -> bool:
        """Whether `allowed` can be asked; until then the grammar is being compiled."""

    def another(self) -> Constraint:
        """For another choice of the same request."""

    def allowed(self, output: Sequence[int]) -> NDArray[np.bool_]:
        """Which tokens may follow `output`, which goes on from that of the last call. bool[V]"""


class NamedAdapter(Protocol):
    """A LoRA adapter of the model."""

    @property
    def name(self) -> str:
        """By which requests ask for it."""

    @property
    def revision(self) -> str:
        """Name of its weights, part of block keys."""


@dataclass(slots=True)
class Times:
    """When a choice has changed from stage to stage, by the engine's clock; None: it has not."""

    arrived: float | None = None  # of a request's first choice
    started: float | None = None  # to be computed, for the first time
    decoding: float = 0.0  # has begun to decode: 0 before
    made: int = 0  # tokens that it had put out then
    embedded: bool = False  # whether embeddings that were missing have come


# By identity: queues and traces look a request up, and must not compare its tokens.
@dataclass(eq=False)
class Request:
    """One choice of a request: what it is computed from, and how far it has come. What follows from
    `source`, which does not change, is looked up once, as each token of each step asks for it."""

    source: GenerateRequest  # as the client, or a proxy, sent it
    index: int  # number of the choice
    arrival: int  # number by which older requests go first
    tokens: list[int]  # the prompt, then what this choice has put out, here or elsewhere
    positions: NDArray[np.int64]  # int64[1 or 3, num_prompt], rotary positions of the prompt
    rope_delta: int  # what to add to a later token's index for its position
    keys: BlockKeyChain  # names of its full blocks
    rank: float = 0.0  # lower goes first, by --scheduling-policy; then the older one
    deadline: float | None = None  # of the engine's clock
    siblings: tuple[int, ...] = ()  # choices that share this one's prompt and have not begun
    status: Status = Status.WAITING  # which queue it is in
    blocks: list[int] = field(default_factory=list)  # KV blocks in the order of its tokens
    num_computed: int = 0  # tokens, from the first, that have KV in `blocks`
    num_stored: int = 0  # tokens of those in blocks that other requests may find
    num_cached: int | None = None  # prompt tokens whose KV was found, None until it first runs
    looked_below: bool = False  # whether lower tiers were asked for its KV since it waits
    num_matched: int = 0  # tokens of it that were known when it was last found unable to start
    awaits_item: MMItem | None = None  # without whose embeddings it cannot start
    received: bool = False  # whether another worker has computed its prompt
    constraint: Constraint | None = None  # what the next token must match
    adapter: NamedAdapter | None = None  # what computes it beside the model
    times: Times = field(default_factory=Times)  # for metrics
    # of the prompt's tokens from the second on, as far as they are scored
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)

    @property
    def may_sample(self) -> bool:
        """Whether it is known what the next token is held to."""
        return self.constraint is None or self.constraint.ready

    @property
    def scores_prompt(self) -> bool:
        """Whether its prompt's own tokens are scored: all of it is computed here then."""
        return self.sampling.prompt_logprobs is not None and self.num_output == 0

    @property
    def adapter_name(self) -> str | None:
        return self.adapter.name if self.adapter is not None else None

    @cached_property
    def key(self) -> RequestKey:
        return self.source.request_id, self.index

    @property
    def sampling(self) -> SamplingParams:
        return self.source.sampling

    @cached_property
    def mm_items(self) -> list[MMItem]:
        return self.source.mm_items

    @cached_property
    def num_prompt(self) -> int:
        return len(self.source.token_ids)

    @property
    def output(self) -> Sequence[int]:
        return self.tokens[self.num_prompt :]

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_to_come(self) -> int:
        """Tokens that it may still put out here."""
        return 1 if self.hands_over else self.sampling.max_tokens - self.num_output

    @property
    def may_be_guessed(self) -> bool:
        """Whether a token can be checked without the one before it: nothing counts what was put
        out."""
        s = self.sampling
        counts = s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1
        return not counts and self.constraint is None and self.num_output >= s.min_tokens

    @property
    def order(self) -> Order:
        """Which runs first: the lower rank, then the older, then the lower choice."""
        return self.rank, self.arrival, self.index

    @property
    def num_left(self) -> int:
        """Tokens without KV. While one is left, the last that was put out, the request decodes."""
        return len(self.tokens) - self.num_computed

    @cached_property
    def hands_over(self) -> bool:
        """True if another worker decodes: one token here, then the KV waits to be fetched."""
        return wants_remote_decode(self.source.kv_transfer_params)

    @property
    def adopts(self) -> bool:
        """True if this worker was chosen before the request's first token was known: that token
        then comes with the KV and is put out here too."""
        ref = self.source.kv_transfer_params
        return bool(
            ref
            and ref.get("remote_num_tokens") == 0
            and not self.source.emitted
            # The token comes without log-probabilities: for these it is drawn here again.
            and self.sampling.logprobs is None
        )

    def items_in(self, start: int, end: int) -> Iterator[MMItem]:
        """Media items with a placeholder among tokens start … end − 1."""
        return (item for item in self.mm_items if item.offset < end and item.end > start)

    @property
    def items_left(self) -> Iterator[MMItem]:
        """Media items with a placeholder among the prompt's tokens that have no KV."""
        return self.items_in(max(self.num_computed, self.num_matched), self.num_prompt)

    def reset(self) -> None:
        """Forget all KV; the next run computes it again."""
        self.blocks = []
        self.num_computed = 0
        self.num_stored = 0
        self.looked_below = False
        self.num_matched = 0
        self.awaits_item = None


def choices_of(source: GenerateRequest) -> list[int]:
    """Indices of the choices to run: those with emitted tokens, or all."""
    return sorted(source.emitted) if source.emitted else list(range(source.sampling.n))


def sibling_of(request: Request, index: int) -> Request:
    """Another choice of the same request, with nothing computed yet."""
    source = request.source
    # A chain of its own: each grows with the tokens of one choice.
    keys = BlockKeyChain(request.keys.root, request.keys.block_size, source.mm_items)
    return Request(
        source=source,
        index=index,
        arrival=request.arrival,
        tokens=[*source.token_ids, *source.emitted.get(index, ())],
        positions=request.positions,
        rope_delta=request.rope_delta,
        keys=keys,
        rank=request.rank,
        deadline=request.deadline,
        constraint=request.constraint and request.constraint.another(),
        adapter=request.adapter,
    )
