"""Steps, and how long they take. They run one at a time or, where all decode and a device computes
beside the host, several in a row: each is launched before the host accounts for the tokens of the
one before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from msgspec import structs

from connectors.kv.base import Fence
from services.engine.scheduling.chunks import Chunk, StepSizes, Work, amounts_of, work_of
from services.engine.scheduling.decode_delay import DecodeDelay
from services.engine.scheduling.draft_budget import DraftBudget
from services.engine.scheduling.request import Request, Status
from services.engine.scheduling.seams import (
    Clock,
    Launch,
    LaunchedSteps,
    Meter,
    Sampled,
    StepRunner,
)


class StepRuns:
    """Runs the chunks that a scheduler has made. `launch`: see there, None for one step at a time;
    `stepped` is called after each launch, with what passes once the device has done it; `meanwhile`
    is entered while the model computes."""

    def __init__(
        self,
        runner: StepRunner,
        launch: Launch | None,
        stepped: Callable[[Fence | None], None],
        meanwhile: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._runner = runner
        self._launch = launch
        self._stepped = stepped
        self._meanwhile = meanwhile
        self._chunks: Sequence[Chunk] = ()  # not kept once taken: requests own adapters
        self._launched: LaunchedSteps | None = None  # with a step whose tokens are not known
        self._left = 0  # steps to come after it, for which there are blocks
        self._requests: set[int] = set()

    @property
    def under_way(self) -> bool:
        """Whether a step is launched that has not been taken."""
        return self._launched is not None

    def __len__(self) -> int:
        """Chunks of the step that is taken up or under way."""
        return len(self._chunks)

    def holds(self, request: Request) -> bool:
        """Whether a request is in a step under way, and has blocks for those after it."""
        return self.under_way and id(request) in self._requests

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Take chunks up. Those that stand for several steps are launched if they can be."""
        self._chunks = chunks
        # `lengthen` gives all chunks of a step the same number of steps.
        if self._launch is None or chunks[0].steps == 1:
            return
        with self._computing():
            self._launched = self._launch(chunks)
        if self._launched is not None:
            self._left = chunks[0].steps - 1
            self._chunks = [structs.replace(chunk, steps=1) for chunk in chunks]
            self._requests = {id(chunk.request) for chunk in chunks}

    def stop(self) -> None:
        """No step follows the one under way."""
        self._left = 0

    def take(self, ends: Callable[[Sampled], bool]) -> tuple[Sequence[Chunk], list[Sampled]]:
        """The chunks of a step, and what they gave; the next is under way then, unless there is
        none left or a request has ended, or `ends` now."""
        # Let go of first: after a step that raises, the next one begins anew.
        chunks, self._chunks = self._chunks, ()
        launched, self._launched = self._launched, None
        with self._computing():
            if launched is None:
                return chunks, self._runner.run(chunks)
            sampled = launched.take()
            # One that has ended meanwhile has given its blocks back: no step may write to them.
            running = all(one.request.status is Status.RUNNING for one in sampled)
            if self._left > 0 and running and not any(map(ends, sampled)):
                launched.follow([one.token_ids[0] for one in sampled])
                self._left -= 1
                self._chunks = [structs.replace(chunk, start=chunk.start + 1) for chunk in chunks]
                self._launched = launched
        return chunks, sampled

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        try:
            with self._meanwhile():
                yield
        finally:  # a step that raised has launched kernels, too
            self._stepped(self._runner.fence())


class StepTimes:
    """Tells what a step does and how long it takes: `meter`, `delay`, `drafts` and, before it runs,
    `sizes`. What passes between two steps of a run is neither's."""

    def __init__(
        self, meter: Meter, delay: DecodeDelay, sizes: StepSizes | None, clock: Clock,
        drafts: DraftBudget | None = None,
    ) -> None:  # fmt: skip
        self._drafts = drafts
        self._meter = meter
        self._delay = delay
        self._sizes = sizes
        self._clock = clock
        self._begun = self._left = 0.0
        self._work = Work()

    def begin(self) -> None:
        """A step begins, with the choice of its chunks."""
        self._begun = self._clock()

    def chosen(self, chunks: Sequence[Chunk]) -> None:
        """Its chunks, before they run."""
        self._work = work_of(chunks)
        if self._sizes is not None:
            self._sizes.does(amounts_of(chunks, self._work))

    def done(self) -> None:
        """It is accounted for. Another of its run may be under way from here on."""
        seconds = self._clock() - self._begun
        self._meter.stepped(self._work, seconds)
        self._delay.computed(self._work, seconds)
        if self._drafts is not None:
            self._drafts.took(self._work, seconds)
        # The next step of a run is launched already, and its time begins here.
        self._begun += seconds

    def leave(self) -> None:
        """The engine goes on to other work."""
        self._left = self._clock()

    def come_back(self) -> None:
        """To a step that is under way."""
        self._begun += self._clock() - self._left
