"""What a generate request must be like, and what the engine makes of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from protocol.errors import InvalidRequest
from protocol.generate_answers import check_spans
from protocol.keys import BlockKeyChain, root_key
from protocol.pooling import check_task
from protocol.refs import KVRef, has_remote_prefill, wants_remote_decode
from protocol.sampling_checks import check_request
from protocol.types import GenerateRequest
from services.engine.config import EngineConfig
from services.engine.scheduling.ranking import ranking
from services.engine.scheduling.request import NamedAdapter, Request, choices_of
from services.engine.scheduling.scheduler import Scheduler
from services.engine.scheduling.seams import Admission, Clock

MakeKeys = Callable[[GenerateRequest], BlockKeyChain]


class AdmissionChecks:
    """Requests in the order they come in. `shares_kv`: this worker can hand a request over."""

    def __init__(
        self,
        config: EngineConfig,
        model: Admission,
        scheduler: Scheduler,
        clock: Clock,
        make_keys: MakeKeys | None,
        *,
        shares_kv: bool,
    ) -> None:
        self._config = config
        self._model = model
        self._limits = scheduler.limits
        self._embeddings = scheduler.embeddings
        self._clock = clock
        self._make_keys = make_keys
        self._root = root_key(model=config.model, revision=config.revision)
        self._shares_kv = shares_kv
        self._arrivals = itertools.count()
        self._rank = ranking(config.scheduling_policy)

    def request(self, source: GenerateRequest) -> Request:
        """`InvalidRequest` names the field at fault."""
        self._check_tokens(source)
        if wants_remote_decode(source.kv_transfer_params) and not self._shares_kv:
            raise InvalidRequest(
                "this worker has no KV connector and cannot hand over KV: set --kv-transfer-config",
                param="kv_transfer_params",
            )
        self._check_media(source)
        # Last: positions and keys rely on spans that lie in order, inside the prompt.
        return self._make(source)

    def _check_tokens(self, source: GenerateRequest) -> None:
        check_request(source, self._model.vocabulary)
        check_task(source.pooling, self._config.pooler)
        limit = self._config.max_model_len
        if source.pooling is not None:
            if len(source.token_ids) > limit:
                raise InvalidRequest(
                    f"input of {len(source.token_ids)} tokens exceeds the limit of {limit} tokens",
                    param="token_ids",
                    code="context_length_exceeded",
                )
        elif len(source.token_ids) + source.sampling.max_tokens > limit:
            raise InvalidRequest(
                f"prompt of {len(source.token_ids)} tokens and max_tokens "
                f"{source.sampling.max_tokens} exceed the limit of {limit} tokens",
                param="token_ids",
                code="context_length_exceeded",
            )

    def _check_media(self, source: GenerateRequest) -> None:
        check_spans(source)
        self._embeddings.validate(source.mm_items)
        longest = max((item.length for item in source.mm_items), default=0)
        if self._limits.whole_media and longest > self._limits.whole_media_tokens:
            raise InvalidRequest(
                f"a media item of {longest} tokens exceeds one step (--max-num-batched-tokens)",
                param="features",
            )

    def _make(self, source: GenerateRequest) -> Request:
        positions, delta = self._model.positions(source)
        adapter = self._model.adapter(source)
        first, *others = choices_of(source)
        # Seconds that are left, not a time of day: clocks of machines differ.
        deadline = source.deadline_s
        return Request(
            source=source,
            index=first,
            arrival=next(self._arrivals),
            tokens=[*source.token_ids, *source.emitted.get(first, ())],
            positions=positions,
            rope_delta=delta,
            keys=self._make_keys(source) if self._make_keys else self._keys(source, adapter),
            rank=self._rank(source),
            deadline=None if deadline is None else self._clock() + deadline,
            siblings=tuple(others),
            constraint=self._model.constraint(source.sampling),
            adapter=adapter,
        )

    def _keys(self, source: GenerateRequest, adapter: NamedAdapter | None) -> BlockKeyChain:
        # Most requests have neither salt nor adapter, and share a root that is hashed once.
        config, root = self._config, self._root
        if source.cache_salt or adapter is not None:
            root = root_key(
                model=config.model,
                revision=config.revision,
                cache_salt=source.cache_salt,
                adapter=adapter.revision if adapter is not None else "",
            )
        return BlockKeyChain(root, config.block_size, source.mm_items)


def remote_kv(source: GenerateRequest) -> KVRef | None:
    """Where another worker has a request's KV. `InvalidRequest` if that makes no sense."""
    params = source.kv_transfer_params
    return KVRef.from_params(params) if params and has_remote_prefill(params) else None
