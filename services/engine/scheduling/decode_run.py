"""Several decode steps of the same requests in a row, where a device computes beside the host: each
is launched before the host accounts for the tokens of the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.request import Status
from services.engine.scheduling.seams import LaunchedSteps, Sampled


class DecodeRun:
    """The steps that are left of a run whose first is launched. Its blocks were allocated for all
    of them."""

    def __init__(self, chunks: Sequence[Chunk], steps: LaunchedSteps) -> None:
        """chunks: as the scheduler made them, of one number of `steps` all."""
        self._steps = steps
        self._left = chunks[0].steps - 1
        self._chunks = [replace(chunk, steps=1) for chunk in chunks]
        self._requests = {id(chunk.request) for chunk in chunks}
        self.size = len(chunks)
        self.launched = True  # whether the device computes a step whose tokens are not known

    def holds(self, request: object) -> bool:
        """Whether a request has blocks for steps to come."""
        return self.launched and id(request) in self._requests

    def take(self, ends: Callable[[Sampled], bool]) -> tuple[list[Chunk], list[Sampled]]:
        """Wait for the step that is launched, and launch the next unless there is none left or a
        request has ended or will; what was computed, and what it gave."""
        chunks, sampled = self._chunks, self._steps.take()
        self.launched = self._left > 0 and not any(
            one.request.status is not Status.RUNNING or ends(one) for one in sampled
        )
        if self.launched:
            self._left -= 1
            self._chunks = [replace(chunk, start=chunk.start + 1) for chunk in chunks]
            self._steps.follow([one.token_ids[0] for one in sampled])
        return chunks, sampled

    def stop(self) -> None:
        """No step follows the one that is launched."""
        self._left = 0
