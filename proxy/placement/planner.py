"""What a planner is asked, and what it answers: where the stages of a request run.

The need of a rendered request is made here, by exact keys; of others by `proxy.relay.needs`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from protocol.keys import block_keys, root_key
from protocol.kv_events import short_key
from protocol.placement import MediaNeed
from protocol.types import GenerateRequest
from proxy.admission import Admission
from proxy.fleet.worker import Instance
from proxy.request_state import RequestState, Tries
from services.frontend.render import Frontend


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
    `alone`: one worker computes the prompt and the answer.
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
    alone: bool = False

    @property
    def wanted_model(self) -> str | None:
        """What to choose workers by: a proxy that renders for one model has workers of that alone,
        and calls it by names that they may not know; adapters it calls as they do."""
        return self.model if self.predicted or self.selective else None


@dataclass(frozen=True)
class Plan:
    """Where one attempt runs.

    `decode`: the worker that makes the answer.
    `prefill`: the one that computes the prompt; None: the decode worker does both.
    `encoders`: by mm_hash, who is to make an item's embeddings or has them; items without one are
    placed by content.
    `held`: items that need no encoder, since the worker that prefills has their embeddings or the
    KV of their whole span.
    `local`: items that the worker that prefills encodes by itself.
    `model`: whose encoders take the items that are placed by content, None for any.
    """

    decode: Instance
    prefill: Instance | None = None
    encoders: Mapping[str, Instance] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    model: str | None = None

    @property
    def at(self) -> Instance:
        """The worker that computes the prompt, and reads its embeddings."""
        return self.prefill or self.decode

    @cached_property  # each item asks several times
    def reader(self) -> str:
        """The EC compatibility of the worker that reads the embeddings."""
        return self.at.ec_compatibility

    def encodes_there(self, mm_hash: str) -> bool:
        """Whether the worker that reads an item's embeddings can make them itself."""
        maker = self.encoders.get(mm_hash)
        return self.at.does_all or (maker is not None and maker.url == self.at.url)


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

    def prefilled(self, request_id: str, elapsed_s: float) -> None:
        """The attempt's prompt is computed."""
        ...

    def encoded(self, request_id: str, end: ItemEnd) -> None:
        """No encoder works on an item of the attempt any more."""
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


@dataclass(frozen=True)
class ItemEnd:
    """How the encoding of an item went. `as_planned`: the encoder that was planned has it; of
    another one's work nothing is said. `failed`: encoders at fault, as those of an attempt."""

    mm_hash: str
    elapsed_s: float
    as_planned: bool
    failed: Sequence[Instance] = ()

    @staticmethod
    def of(plan: Plan, mm_hash: str, began: float, maker: str, tries: Tries) -> ItemEnd:
        """`began`: when it was first asked for, of `time.monotonic`. `maker`: the URL of the
        encoder that has it, "" for none. `tries`: of the work."""
        planned = plan.encoders.get(mm_hash)
        as_planned = bool(maker) and (planned is None or planned.url == maker)
        return ItemEnd(mm_hash, time.monotonic() - began, as_planned, tries.take_blamed())


@dataclass(frozen=True)
class ModelNames:
    """`served`: for clients and masters. `keyed` and `revision`: in content keys. `alone`: all
    workers of the proxy serve it."""

    served: str = ""
    keyed: str = ""
    revision: str = ""
    alone: bool = True

    @staticmethod
    def of(frontend: Frontend, *, alone: bool) -> ModelNames:
        info = frontend.info
        return ModelNames(frontend.name, info.name, info.revision, alone)


def need_of(wanted: GenerateRequest, names: ModelNames) -> Need:
    """Of an attempt of a rendered request. Keys are made only if a master is asked."""
    adapted = bool(wanted.adapter_revision)

    @functools.cache  # relayed requests keep their need over all attempts
    def keys(block_size: int) -> list[int]:
        root = root_key(
            model=names.keyed,
            revision=names.revision,
            cache_salt=wanted.cache_salt,
            adapter=wanted.adapter_revision,
        )
        made = block_keys(wanted.token_ids, block_size, root, wanted.mm_items)
        return [short_key(key) for key in made]

    # A clip's frames may stand apart, with text between: its span in the prompt has gaps.
    items = [
        MediaNeed(item.mm_hash, item.length + sum(item.gaps), item.offset, modality=item.modality)
        for item in wanted.mm_items
    ]
    return Need(
        wanted.request_id,
        len(wanted.token_ids),
        wanted.sampling.max_tokens,
        items,
        keys,
        wanted.model if adapted else names.served,
        selective=adapted or not names.alone,
        pooling=wanted.pooling is not None,
    )
