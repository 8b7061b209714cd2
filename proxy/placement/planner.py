"""What a planner is asked, and what it answers: where the stages of a request run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from protocol.placement import MediaNeed
from protocol.types import Role
from proxy.admission import Admission
from proxy.fleet.worker import Instance
from proxy.request_state import RequestState


@dataclass(frozen=True)
class Need:
    """What one attempt of a request takes, for a planner.

    `request_id`: the attempt's own; every further attempt has another.
    `prompt_tokens`: of the prompt, media included; an estimate if `predicted`.
    `max_tokens`: that the answer may have, 0 if the request does not say.
    `items`: its media, each with its place in the prompt.
    `keys`: short keys of the prompt's full blocks, given the block size in tokens.
    `model`: the name that clients use, for masters that serve several.
    `selective`: not all workers of this proxy do: it is the name of an adapter, or of one of the
    several models that the proxy renders for.
    `pooling`: the answer has no tokens, so that nothing is decoded.
    `predicted`: keys are over message parts, since this proxy cannot render the prompt.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    items: Sequence[MediaNeed]
    keys: Callable[[int], list[int]]
    model: str = ""
    predicted: bool = False
    selective: bool = False
    pooling: bool = False

    @property
    def wanted_model(self) -> str | None:
        """What to choose workers by: a proxy that renders for one model has workers of that alone,
        and calls it by names that they may not know; adapters it calls as they do."""
        return self.model if self.predicted or self.selective else None


@dataclass(frozen=True)
class Plan:
    """`prefill` None: the decode worker does both. `encoders`: by mm_hash, who is to make an item's
    embeddings or has them; items without one are placed by content. `held`: items that need no
    encoder, since the worker that prefills has their embeddings or the KV of their whole span.
    `local`: items that the worker that prefills encodes by itself. `model`: whose encoders take the
    items that are placed by content, None for any."""

    decode: Instance
    prefill: Instance | None = None
    encoders: Mapping[str, Instance] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    model: str | None = None

    @property
    def reader(self) -> str:
        """The EC compatibility of the worker that reads the embeddings."""
        return (self.prefill or self.decode).ec_compatibility


class Planner(Protocol):
    """Admits requests, plans each of their attempts, and is told how it went."""

    @property
    def asks(self) -> bool:
        """Whether plans come from a master. Without one, a relayed request chooses a worker when
        each stage begins, and needs no plan."""
        ...

    @property
    def admission(self) -> Admission | None:
        """What a request has to pass before its first attempt; None where a master admits, when it
        is asked for a place."""
        ...

    async def place(self, state: RequestState, need: Need) -> Plan:
        """Where the attempt that begins is to run. Raises if it cannot be placed; only if it is
        must `over` be called."""
        ...

    def stage_over(
        self, request_id: str, stage: Role, elapsed_s: float, mm_hash: str | None = None
    ) -> None:
        """The attempt's prompt is prefilled, or its item `mm_hash` encoded."""
        ...

    def over(self, request_id: str, end: AttemptEnd) -> None:
        """The attempt has ended."""
        ...

    def suspect(self, instance: Instance) -> None:
        """A call has found that a worker takes no requests."""
        ...


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt went. `aborted`: before its last token. `failed`: workers that did. Of its
    decode call: `elapsed_s`, `first_s` to its first token, and `output_tokens`; 0 if unknown."""

    aborted: bool
    failed: Sequence[Instance] = ()
    elapsed_s: float = 0.0
    first_s: float = 0.0
    output_tokens: int = 0
