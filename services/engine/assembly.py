"""What an engine holds, built in order and released in reverse: connectors, models, the cores that
its parts of the model call for."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import torch

from connectors.base import Changed, no_listener
from connectors.config import drop_namespace, namespace_dir
from connectors.factory import Connectors
from connectors.kv.base import KVConnector
from protocol.curve import Curve
from protocol.fleet_key import FleetKey
from services.engine.attention.kv_cache import block_bytes
from services.engine.config import EngineConfig
from services.engine.core_share import CoreShare, cores_here
from services.engine.hardware import activate, resolved
from services.engine.messages import Ready
from services.engine.model.adapters import Adapters
from services.engine.parts import Surroundings, language_part, vision_part
from services.engine.publishing import EventThread
from services.engine.sampling.grammar import Grammars
from services.engine.scheduling.chunks import StepSizes
from services.engine.scheduling.decode_delay import DecodeDelay
from services.engine.scheduling.encode_queue import EncodeQueue
from services.engine.scheduling.generate_core import GenerateCore
from services.engine.scheduling.rates import RateMeter
from services.engine.scheduling.seams import Clock
from services.membership.events import CacheLog

logger = logging.getLogger(__name__)


class Assembly:
    """Owns everything an engine process holds; `wake` interrupts its wait from another thread. By
    `clock` (s) it times its steps and its requests' deadlines."""

    def __init__(
        self, config: EngineConfig, wake: Callable[[], None], clock: Clock = time.monotonic
    ) -> None:
        self.config = config = resolved(config)
        activate(config.device)
        self._clock = clock
        self.parameter_bytes: dict[str, int] = {}
        self.max_model_len = config.max_model_len
        self.meter = RateMeter()
        self.sizes = StepSizes()
        self._delay = DecodeDelay(config.max_decode_delay_s, config.max_num_batched_tokens)
        self._log = CacheLog(config.block_size) if config.events is not None else None
        self._curve = Curve.of(FleetKey(config.fleet_key))
        self._connectors = Connectors(config.ec, config.kv, config.device, self._curve)
        self.adapters: Adapters | None = None
        self._media = "vision" in config.parts
        # None until `_build` has made them: `close` may come in the middle of it.
        self._cores: CoreShare | None = None
        self.kv: KVConnector | None = None
        self.generate: GenerateCore | None = None
        self.encode: EncodeQueue | None = None
        self._events: EventThread | None = None
        self._grammars: Grammars | None = None
        embeddings = f"{config.model}@{config.revision[:12]}:{config.dtype}"
        self._ec_kind = self._connectors.ec_kind(embeddings)
        self.ec = self._connectors.make_ec(
            embeddings,
            produces="vision" in config.parts,
            consumes="language" in config.parts,
            changed=self._changes(of_store=True),
        )
        try:
            self._cores = _core_share(config)
            self._build(wake)
        except BaseException:
            self.close()  # peers of this host would find what is left of it
            raise

    def _changes(self, *, of_store: bool) -> Changed:
        """Who is told of embeddings that come and go: of the store's where there is one, as it
        holds them longer, else of the cache's."""
        if self._log is None or of_store != ("vision" in self.config.parts):
            return no_listener
        return self._log.embedding_changed

    def _build(self, wake: Callable[[], None]) -> None:
        shared = Surroundings(
            self.config, self._connectors, self.ec, self.meter, self.sizes, self._log, self._clock,
            self._delay, self._computing,
            self._cores.watch if self._cores is not None else lambda _: None,
        )  # fmt: skip
        activations = 0
        if "vision" in self.config.parts:
            # First, since the KV pool takes what both leave of a GPU.
            vision = vision_part(shared, wake)
            self.encode, activations = vision.queue, vision.activation_bytes
            self.parameter_bytes["vision"] = vision.parameter_bytes
        if "language" in self.config.parts:
            part = language_part(shared, self._changes(of_store=False), activations)
            self.generate, self.kv, self._grammars = part.core, part.kv, part.grammars
            self.adapters = part.adapters
            self.layout, self.max_model_len = part.layout, part.max_model_len
            self.parameter_bytes["language"] = part.parameter_bytes
            self._media = self._media or part.takes_media
        # Last: only the language model says whether prompts may hold media, whose events are told.
        self._events = self._publish()

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        with contextlib.ExitStack() as entered:
            if self._cores is not None:
                entered.enter_context(self._cores.computing())
            entered.enter_context(self._connectors.meanwhile())
            yield

    def _publish(self) -> EventThread | None:
        """Blocks if tokens are generated here, embeddings if they are made or taken here."""
        events = self.config.events
        if events is None:
            return None
        kv = events.blocks() if self.generate is not None else None
        return EventThread(kv, events.embeddings() if self._media else None, curve=self._curve)

    def ready(self) -> Ready:
        blocks = self.generate.scheduler.blocks if self.generate is not None else None
        return Ready(
            parameter_bytes=self.parameter_bytes,
            max_model_len=self.max_model_len,
            num_blocks=blocks.num_blocks if blocks is not None else 0,
            block_size=self.config.block_size,
            kv_layout=self.layout if blocks is not None else None,
            kv_endpoint=self.kv.endpoint() if self.kv is not None else {},
            ec_endpoint=self.ec.endpoint(),
            ec_compatibility=self._ec_kind,
            kv_bytes_per_token=block_bytes(self.layout) // self.config.block_size
            if blocks is not None
            else 0,
            events=self._events.sources if self._events is not None else [],
            adapters=self.adapters.revisions if self.adapters is not None else {},
        )

    def close(self) -> None:
        """Tell peers what is not wanted any more, then let go of everything, even if a part
        fails."""
        with contextlib.ExitStack() as last_to_first:
            last_to_first.callback(drop_namespace)
            if self._events is not None:
                last_to_first.callback(self._events.close)
            last_to_first.callback(self.ec.close)
            if self._cores is not None:
                last_to_first.callback(self._cores.close)
            if self.kv is not None:
                last_to_first.callback(self.kv.close)
            if self._grammars is not None:
                last_to_first.callback(self._grammars.close)
            # Entered last, closed first: what these give up is told to peers by the connectors.
            if self.generate is not None:
                last_to_first.callback(self.generate.close)
            if self.encode is not None:
                last_to_first.callback(self.encode.close)


def _core_share(config: EngineConfig) -> CoreShare | None:
    # A number of threads that was asked for is kept, beside any other engines.
    if not config.share_cores or config.num_threads or config.device != "cpu":
        return None
    try:
        return CoreShare(namespace_dir(), cores_here(), torch.get_num_threads())
    except OSError as error:  # an engine does without
        logger.warning("--share-cores: other engines cannot be told: %s", error)
        return None
