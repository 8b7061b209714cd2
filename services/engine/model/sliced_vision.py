"""A run of the vision model in slices, with other work of the engine in between.

Where one process encodes pictures and decodes, a picture must not hold tokens up for as long as the
whole vision model takes. Its layers are transformers' own code, which cannot stop half-way and
return; so a run has a thread of its own, which waits before a layer once its time is used. Thread
and engine never compute at the same time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from services.engine.model.vision import VisionModel
from services.engine.scheduling.encode_run import Results
from services.engine.scheduling.seams import Clock, Prepared


class _Abandoned(BaseException):
    """Leaves a run that was given up; no handler of `Exception` may take it for a failure."""


class SlicedVision:
    """`services.engine.scheduling.seams.Slices` of a vision model."""

    def __init__(self, vision: VisionModel, clock: Clock) -> None:
        self._vision = vision
        self._clock = clock
        self._run: Future[Results] | None = None
        self._thread = 0
        self._until = math.inf
        self._abandoned = False
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._device = next(vision.module.parameters()).device
        for layer in _layers(vision.module):
            layer.register_forward_pre_hook(self._before_layer)

    def run(self, batch: Sequence[Prepared], most_s: float) -> Results | None:
        """Go on with the run of `batch`, or begin it, for `most_s` and the rest of a layer; None
        while it has not ended. Raises what the run has raised."""
        self._until = self._clock() + most_s
        if self._run is None:
            self._run = Future()
            # A future is done before its callbacks run, so what waits below finds that it is.
            self._run.add_done_callback(lambda _: self._stopped.release())
            # A process that ends must not wait for a run that waits for its next slice.
            threading.Thread(target=self._encode, args=(batch, self._run), daemon=True).start()
        else:
            self._go.release()
        self._stopped.acquire()
        if not self._run.done():
            return None
        ended, self._run = self._run, None
        return ended.result()

    def _encode(self, batch: Sequence[Prepared], ended: Future[Results]) -> None:
        self._thread = threading.get_ident()
        try:
            ended.set_result(self._vision.encode(batch))
        except BaseException as error:
            ended.set_exception(error)

    def _before_layer(self, *_: Any) -> None:
        # A run without a bound needs no look at the clock, before which a GPU is waited for.
        if threading.get_ident() != self._thread or math.isinf(self._until):
            return
        if self._device.type == "cuda":  # its layers are launched long before they are computed
            torch.cuda.current_stream(self._device).synchronize()
        if self._clock() < self._until:
            return
        self._stopped.release()
        self._go.acquire()
        if self._abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """Leave the run under way, if there is one."""
        if self._run is None:
            return
        # A run that has not ended waits before a layer, where `run` has left it.
        ended, self._run = self._run, None
        self._abandoned = True
        self._go.release()
        self._stopped.acquire()
        self._abandoned = False
        assert isinstance(ended.exception(), _Abandoned)

    def close(self) -> None:
        self.abandon()


def _layers(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    lists = (one for one in module.modules() if isinstance(one, torch.nn.ModuleList))
    return (layer for layers in lists for layer in layers)
