"""How long requests spend in each stage of an engine, and how long they are: as histograms.

A request bears the times of its changes from stage to stage, so that a step costs nothing for those
that do not change. `StageTimes` looks at traced requests, and says what they were doing when.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from protocol.histogram import GAPS, SECONDS, TOKENS, Histogram
from services.engine.messages import Stage
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.request import Request, Status
from services.engine.scheduling.seams import Clock

_MOST = 64  # pieces of work that are traced at once: a look costs a step some 10 us for each
_Work = TypeVar("_Work", bound=Hashable)


class RequestTimes:
    """Histograms by name. A prompt counts once, with its first choice and where it was computed; an
    output with each choice, where it ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.queue, self.prefill = Histogram.of(SECONDS), Histogram.of(SECONDS)
        self.decode, self.inference = Histogram.of(SECONDS), Histogram.of(SECONDS)
        self.kv, self.embeddings = Histogram.of(SECONDS), Histogram.of(SECONDS)
        self.per_token = Histogram.of(GAPS)
        self.prompt, self.output = Histogram.of(TOKENS), Histogram.of(TOKENS)

    def by_name(self) -> dict[str, Histogram]:
        return {
            "request_queue_time_seconds": self.queue,
            "request_kv_wait_seconds": self.kv,
            "request_embedding_wait_seconds": self.embeddings,
            "request_prefill_time_seconds": self.prefill,
            "request_decode_time_seconds": self.decode,
            "request_inference_time_seconds": self.inference,
            "request_time_per_output_token_seconds": self.per_token,
            "request_prompt_tokens": self.prompt,
            "request_generation_tokens": self.output,
        }

    def arrived(self, request: Request) -> None:
        """A request is queued. Its other choices begin later, and have no such time."""
        request.times.arrived = self._clock()

    def have_embeddings(self, requests: Iterable[Request]) -> None:
        """The last embeddings that these requests waited for have come."""
        for request in requests:
            times = request.times
            if times.arrived is not None and not times.embedded:
                times.embedded = True
                self.embeddings.observe(self._clock() - times.arrived)

    def started(self, requests: Iterable[Request]) -> None:
        """Requests have begun to be computed, some of them not for the first time."""
        now = self._clock()
        for request in requests:
            times = request.times
            if times.started is not None:
                continue
            times.started = now
            if request.received:  # it decodes, from the first step on
                times.decoding, times.made = now, request.num_output
            if times.arrived is not None:
                (self.kv if request.received else self.queue).observe(now - times.arrived)

    def first_output(self, request: Request, *, adopted: bool) -> None:
        """A choice has put out its first token here, which may have come with its KV."""
        times = request.times
        if request.received and not adopted:
            return
        now = self._clock()
        times.decoding, times.made = now, request.num_output
        if request.received or times.arrived is None:
            return
        self.prompt.observe(request.num_prompt)
        self.prefill.observe(now - (times.arrived if times.started is None else times.started))

    def finished(self, request: Request, *, handed_over: bool) -> None:
        """A choice has ended without an error; `handed_over`: another worker decodes it."""
        times, now = request.times, self._clock()
        # A choice whose first token came with its KV may end before it is ever computed.
        started = times.decoding if times.started is None else times.started
        self.inference.observe(now - started)
        if handed_over or request.source.pooling is not None:
            return
        self.output.observe(request.num_output)
        if made := request.num_output - times.made:
            self.decode.observe(now - times.decoding)
            self.per_token.observe((now - times.decoding) / made)


class StageTimes(Generic[_Work]):
    """Looks at the work of traced requests alone, so that others cost nothing. Clients decide what
    is traced: of more at once than a step should look at, the later are not.

    `stages_of` tells which stages of some work are in progress, None once the work has ended.
    """

    def __init__(self, clock: Clock, stages_of: Callable[[_Work], Collection[str] | None]) -> None:
        self._clock = clock
        self._stages_of = stages_of
        self._begun: dict[tuple[str, _Work], dict[str, float]] = {}
        self._over: list[Stage] = []

    def watch(self, request_id: str, work: _Work) -> None:
        """Note the stages of this request's work from here on, unless too many are traced."""
        if len(self._begun) < _MOST:
            self._begun[request_id, work] = {}
            self._look_at(request_id, work, self._clock())

    def look(self) -> None:
        """Note what has begun and ended since the last look."""
        if not self._begun:
            return
        now = self._clock()
        for request_id, work in list(self._begun):
            self._look_at(request_id, work, now)

    def _look_at(self, request_id: str, work: _Work, now: float) -> None:
        begun, stages = self._begun[request_id, work], self._stages_of(work)
        going_on = stages or ()
        for name in [name for name in begun if name not in going_on]:
            self._over.append(Stage(request_id, name, begun.pop(name), now))
        for name in going_on:
            begun.setdefault(name, now)
        if stages is None:
            del self._begun[request_id, work]

    def take(self) -> list[Stage]:
        """The stages that have ended since the last time."""
        over, self._over = self._over, []
        return over


def stages_of(request: Request, embeddings: EmbeddingCache) -> list[str]:
    """What a request that has its KV, or needs none of another engine, is doing."""
    left = request.items_left
    stages = [] if all(embeddings.ready(i) for i in left) else ["transfer embeddings"]
    if request.status is not Status.RUNNING:
        return [*stages, "queue"]
    begun = request.received or request.num_computed >= request.num_prompt
    return [*stages, "decode" if begun else "prefill"]
