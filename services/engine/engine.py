"""An engine's steps, and the requests that they serve."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from connectors.meter import TransferStats
from connectors.node import Readable
from protocol.errors import TriptychError, error_info
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.engine.assembly import Assembly
from services.engine.containment import StepGuard, added
from services.engine.hardware import memory_gauges
from services.engine.messages import Stage
from services.engine.reports import counters_of, gauges_of

logger = logging.getLogger(__name__)


class Engine(Assembly):
    """Takes requests and steps over them."""

    def _build(self, wake: Callable[[], None]) -> None:
        """Each part's steps fail on their own."""
        super()._build(wake)
        queue, core = self.encode, self.generate
        # No request is at fault where polling raises: none ends, unless that goes on.
        self._polling: StepGuard[None] = StepGuard(self._poll, lambda _: [], lambda: [])
        self._encoding = (
            StepGuard(self._encode, queue.fail_all, lambda: []) if queue is not None else None
        )
        self._generating = (
            StepGuard(core.step, core.fail_all, core.check_integrity) if core is not None else None
        )

    def _poll(self) -> list[None]:
        self.ec.poll(self.encode if self.encode is not None else ())
        return []

    def _encode(self) -> list[EncodeOutput]:
        """As much of a run as does not hold up requests that decode for too long."""
        assert self.encode is not None
        begun = self._clock()
        outputs = self.encode.step(self._delay.for_pictures_s)
        self._delay.spent(self._clock() - begun)
        return outputs

    def step(self) -> tuple[list[RequestOutput], list[EncodeOutput]]:
        """Encode one batch and run one batch of tokens, as far as there is work. What raises ends
        requests, see `StepGuard`."""
        # First: which pictures are encoded next depends on what consumers ask for.
        self._polling.step()
        decoding = self.generate is not None and self.generate.scheduler.decoding
        self._delay.begin(decoding=decoding)
        encoded = self._encoding.step() if self._encoding is not None else []
        outputs = self._generating.step() if self._generating is not None else []
        if self._log is not None and self._events is not None:
            self._events.hand(self._log.take())
        return outputs, encoded

    def stages(self) -> list[Stage]:
        """Stages of traced requests that have ended since the last time."""
        parts = (self.encode, self.generate)
        return [stage for part in parts if part is not None for stage in part.stages.take()]

    def add(self, request: GenerateRequest) -> list[RequestOutput]:
        """Queue a request; returns outputs only if it is refused."""
        assert self.generate is not None
        core = self.generate

        def failed(error: TriptychError) -> list[RequestOutput]:
            core.abort([request.request_id])
            return [
                RequestOutput(request.request_id, finish_reason="error", error=error_info(error))
            ]

        return added(core.add, request, failed)

    def add_media(self, request: EncodeRequest) -> list[EncodeOutput]:
        """Queue a request's media items; returns those that are answered at once."""
        assert self.encode is not None
        queue = self.encode

        def failed(error: TriptychError) -> list[EncodeOutput]:
            queue.abort([request.request_id])
            return [EncodeOutput(request.request_id, "", error=error_info(error))]

        return added(queue.add, request, failed)

    def serve_peers(self) -> None:
        """Instead of a step that cannot be made now: peers are answered, leases renewed, and what
        has been let go is free again."""
        self._poll()
        if self.generate is not None:
            self.generate.transfers.serve()

    @contextlib.contextmanager
    def occupied(self) -> Iterator[None]:
        """While a command takes long that calls no connector: peers that ask hear that this engine
        computes, as they do while a step runs."""
        served = contextlib.ExitStack()
        served.enter_context(self._connectors.meanwhile())
        try:
            yield
        finally:
            try:
                served.close()
            except Exception:  # the command is done, and the next step polls what failed again
                logger.exception("peers could not be served during a command")

    @property
    def wait_s(self) -> float:
        """How long the loop may sleep: not at all with work at hand, briefly while bytes may be
        moving, else until a command or a peer's message comes. To be asked just before."""
        if self.encode is not None and self.encode.runnable:
            return 0.0
        if self.generate is not None and self.generate.progressed:
            return 0.0
        # Only before a real sleep: once armed, a transport tells by its descriptors what comes.
        if not self._connectors.arm():
            return 0.0
        waiting = self.generate is not None and (
            len(self.generate) or self.generate.transfers.active or self.generate.tiers.active
        )
        if waiting or self.ec.active or (self.encode is not None and self.encode.blocked):
            # Fences, copies of tiers, deadlines and leases wake nothing: they have to be looked at.
            return 0.001
        return 1.0

    def rest(self) -> None:
        """The loop is about to sleep."""
        if self._cores is not None:
            self._cores.rest()

    @property
    def sockets(self) -> list[Readable]:
        """Readable when a peer has said or sent something."""
        return self._connectors.sockets

    def device_memory(self) -> dict[str, float]:
        """Bytes of the GPU, if there is one."""
        return memory_gauges(self.config.device)

    def gauges(self) -> dict[str, float]:
        return gauges_of(self)

    def counters(self) -> dict[str, float]:
        return counters_of(self)

    @property
    def ec_capacity(self) -> int:
        """Bytes of embeddings that are kept for others."""
        return self.config.ec.ec_buffer_size

    def transfer_stats(self) -> list[TransferStats]:
        return [self.ec.stats(), *([self.kv.stats()] if self.kv is not None else [])]

    def check_integrity(self) -> list[str]:
        problems = self.ec.check_integrity()
        if self.generate is not None and self.kv is not None:
            problems += self.generate.check_integrity()
            # At rest alone: it takes each offer and fetch that is open for one that leaked.
            if not self.generate.transfers.active:
                problems += self.kv.check_integrity()
        return problems

    def reset_caches(self, *, prefix: bool, encoder: bool) -> None:
        if prefix and self.generate is not None:
            self.generate.scheduler.blocks.reset_prefix_cache()
            self.generate.tiers.clear()
            if self._log is not None:
                # Last: it stands for each removal that the pool has just noted.
                self._log.blocks_cleared()
        if encoder:
            self.ec.clear()
            if self.generate is not None:
                self.generate.scheduler.embeddings.clear()
