"""One request and its choices inside a mock engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from protocol.keys import BlockKeyChain
from protocol.refs import KVRef, wants_remote_decode
from protocol.types import GenerateRequest, MMItem
from services.mock.kv_blocks import Holding


class Status(enum.Enum):
    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Choice:
    """`tokens` are what this choice has put out, elsewhere (the first `given`) or here."""

    index: int
    tokens: list[int]
    given: int


@dataclass(eq=False, slots=True)
class Request:
    """All choices of a request share the KV of its prompt.

    `computed` of its `total` tokens, the prompt and what its live choices have put out, have KV;
    when all have, every choice gains a token. `digest` and `seed` decide the tokens. `remote` is KV
    that another worker holds for it, None once fetched or given up. `cached` are prompt tokens that
    were not computed here, None before that is known; `unpriced` of them have not been accounted
    for in a step's duration. `ready` are media items whose embeddings are here.
    """

    source: GenerateRequest
    arrival: int
    digest: int
    seed: int
    keys: BlockKeyChain
    choices: list[Choice]
    remote: KVRef | None = None
    status: Status = Status.WAITING
    holding: Holding = field(default_factory=Holding)
    computed: int = 0
    stored: int = 0
    cached: int | None = None
    unpriced: int = 0
    ready: set[str] = field(default_factory=set)

    @property
    def request_id(self) -> str:
        return self.source.request_id

    @property
    def order(self) -> tuple[int, int]:
        """Who runs first: lower priority value, then the older."""
        return self.source.priority, self.arrival

    @property
    def num_prompt(self) -> int:
        return len(self.source.token_ids)

    @property
    def total(self) -> int:
        return self.num_prompt + sum(len(choice.tokens) for choice in self.choices)

    @property
    def hands_over(self) -> bool:
        """True if another worker decodes: one token here, then the KV waits to be fetched."""
        return wants_remote_decode(self.source.kv_transfer_params)

    @property
    def adopts(self) -> bool:
        """True if this worker was chosen before the request's first tokens were known: they come
        with the KV and are put out here too."""
        params = self.source.kv_transfer_params
        return bool(
            params
            and params.get("remote_num_tokens") == 0
            and not self.source.emitted
            and self.source.sampling.logprobs is None
        )

    def missing_item(self) -> MMItem | None:
        """The first media item that is not computed and whose embedding is not here."""
        for item in self.source.mm_items:
            if item.end > self.computed and item.mm_hash not in self.ready:
                return item
        return None

    def blocks_needed(self, block_size: int, more: int) -> int:
        """Blocks for all tokens and `more` for each choice; full prompt blocks are shared."""
        shared = self.num_prompt // block_size
        tails = (self.num_prompt + len(c.tokens) + more for c in self.choices)
        return shared + sum(-(-tail // block_size) - shared for tail in tails)

    def line(self) -> list[int]:
        """The tokens whose blocks have keys: the prompt, and the answer if there is but one."""
        if len(self.choices) == 1 and self.source.sampling.n == 1:
            return [*self.source.token_ids, *self.choices[0].tokens]
        return self.source.token_ids

    def reset(self) -> None:
        """Forget all KV; the next run computes it again."""
        self.computed = self.stored = self.unpriced = 0


def choices_of(source: GenerateRequest) -> list[Choice]:
    """Those with emitted tokens go on, or all begin."""
    if source.emitted:
        return [Choice(i, list(t), len(t)) for i, t in sorted(source.emitted.items())]
    return [Choice(index, [], 0) for index in range(source.sampling.n)]
