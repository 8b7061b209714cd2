"""The engine: requests in, tokens and embeddings out, one step at a time. No I/O of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from protocol.errors import DeadlineExceeded, InvalidRequest, TriptychError
from protocol.types import GenerateRequest, RequestOutput
from services.engine.config import EngineConfig
from services.engine.scheduling.admission_checks import AdmissionChecks, MakeKeys, remote_kv
from services.engine.scheduling.choices import ChoiceOutputs, SiblingChoices, failure
from services.engine.scheduling.chunks import Chunk, StepSizes
from services.engine.scheduling.decode_delay import DecodeDelay
from services.engine.scheduling.idle_blocks import IdleBlocks
from services.engine.scheduling.live_requests import LiveRequests
from services.engine.scheduling.request import Request, Status
from services.engine.scheduling.request_times import RequestTimes, StageTimes, stages_of
from services.engine.scheduling.scheduler import Scheduler
from services.engine.scheduling.seams import Admission, Clock, Launch, Meter, Sampled, StepRunner
from services.engine.scheduling.step_runs import StepRuns, StepTimes
from services.engine.transfers.kv_fetches import KVFetches
from services.engine.transfers.kv_tiers import KVTiers


class GenerateCore:
    """Schedules, runs and accounts for generate requests.

    `step` is all of it. Where a step passes on a clock that is not the model's own, `advance`,
    `begin` and `complete` are its parts; requests may come and go between the last two.
    """

    def __init__(
        self, config: EngineConfig, model: Admission, scheduler: Scheduler, runner: StepRunner,
        transfers: KVFetches, meter: Meter, clock: Clock,
        meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext,
        make_keys: MakeKeys | None = None, delay: DecodeDelay | None = None,
        tiers: KVTiers | None = None, sizes: StepSizes | None = None, launch: Launch | None = None,
    ) -> None:  # fmt: skip
        """`meanwhile` is entered while the model computes. `make_keys` names a request's blocks;
        without it they are named by the configuration. `delay` bounds prompts in time. `tiers` keep
        what the pool has no room for. `sizes` are told what a step does. `launch`: see there."""
        self.scheduler = scheduler
        self.transfers = transfers
        self.tiers = tiers or KVTiers(scheduler, (), IdleBlocks(), meter, clock)
        self._clock = clock
        self._delay = delay or DecodeDelay()
        self._step_times = StepTimes(meter, self._delay, sizes, clock, scheduler.drafts)
        self._runs = StepRuns(runner, launch, transfers.stepped, meanwhile)
        self._checks = AdmissionChecks(
            config, model, scheduler, clock, make_keys, shares_kv=transfers.shares
        )
        self._live = LiveRequests()
        self._choices = SiblingChoices(self._live, scheduler)
        self.progressed = False  # whether the last step ran anything; else all wait for something
        self._in_step: list[str] = []
        self.times = RequestTimes(clock)
        self._outputs = ChoiceOutputs(scheduler, config.eos_token_ids, self.times)
        self.counters = self._outputs.counters
        self.stages: StageTimes[Request] = StageTimes(clock, self._stages_of)

    def __len__(self) -> int:
        return len(self._live)

    def add(self, source: GenerateRequest) -> list[RequestOutput]:
        """Queue a request; returns outputs only if it is refused."""
        try:
            self.admit(source)
        except TriptychError as error:
            return [failure(source.request_id, 0, error)]
        return []

    def admit(self, source: GenerateRequest) -> None:
        """Queue a request; `InvalidRequest` or `Unavailable` if it is refused."""
        if source.request_id in self._live:
            raise InvalidRequest(f"request id '{source.request_id}' is in use", param="request_id")
        request = self._checks.request(source)
        ref = remote_kv(source)
        if request.scores_prompt:
            ref = None  # KV has no logits: the prompt is computed here, the handle's lease runs out
        self._live.add(request)
        self.times.arrived(request)
        if ref is not None:
            self.transfers.fetch(request, ref)  # needs no embeddings: the KV was computed with them
        else:
            self.scheduler.add(request)
            self.scheduler.embeddings.pin(request)  # they come while it waits for a slot
        if request.hands_over:
            self.transfers.offers.offer(request)

    def trace(self, request_id: str) -> None:
        """Note when the stages of a request's first choice begin and end."""
        for request in self._live.choices(request_id)[:1]:
            self.stages.watch(request_id, request)

    def _stages_of(self, request: Request) -> list[str] | None:
        if self._live.find(request.key) is not request:
            return None
        if self.transfers.fetching(request):
            return ["transfer KV"]
        return stages_of(request, self.scheduler.embeddings)

    @property
    def next_deadline(self) -> float | None:
        """When the next request must have ended."""
        return self._live.next_deadline

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> None:
        """Forget requests at once; blocks of a transfer under way follow when it has settled."""
        for request_id in request_ids:
            for request in self._live.choices(request_id):
                if index in (None, request.index):
                    self._drop(request)
            if index is None:
                self.transfers.offers.release(request_id)

    def _drop(self, request: Request) -> None:
        self._live.remove(request)
        self.transfers.offers.abandon(request.source.request_id, "the request was aborted")
        self.transfers.abort(request)
        self.tiers.forget(request)

    def close(self) -> None:
        """Give every request up, and all that is on its way to or from here for one: peers that
        hold something for them are told."""
        self.abort(self._live.names())
        self.transfers.offers.close()
        self.tiers.close()

    def step(self) -> list[RequestOutput]:
        """Advance transfers, then run one batch; returns what the requests gained."""
        self._in_step = self._live.names()  # first: a step that raises loses what ended in it
        outputs = self.advance()
        if self._runs.under_way:
            self._go_on()
        elif chunks := self.begin():
            self._runs.begin(chunks)
        else:
            return outputs
        outputs += self.complete(*self._runs.take(self._outputs.ends))
        self._step_times.leave()
        return outputs

    def _go_on(self) -> None:
        """With the step that is under way. Who has come takes part from the next one on."""
        scheduler = self.scheduler
        if scheduler.waiting or scheduler.remote or len(scheduler.running) > len(self._runs):
            self._runs.stop()
        self.counters["steps"] += 1
        self._step_times.come_back()

    def begin(self) -> list[Chunk]:
        """The chunks of the next step, [] if there is nothing to compute."""
        self._step_times.begin()
        chunks = self.scheduler.schedule(
            self.transfers.unplace, self._delay.prompt_tokens, self.tiers.awaits
        )
        self._note_starts()
        for request in self.scheduler.preempted:  # what was told of their KV does not hold any more
            self.transfers.offers.restart(request.source.request_id)
        self.scheduler.preempted.clear()
        self.progressed = bool(chunks)
        if chunks:
            self.counters["steps"] += 1
            self._step_times.chosen(chunks)
        self.stages.look()
        return [self._choices.with_siblings(chunk) for chunk in chunks]

    def _note_starts(self) -> None:
        if self.scheduler.started:
            self.times.started(self.scheduler.started)
            self.scheduler.started.clear()

    def complete(self, chunks: Sequence[Chunk], sampled: Sequence[Sampled]) -> list[RequestOutput]:
        """Account for chunks that have run; what their requests gained. Those that have ended in
        the meantime gain nothing."""
        failed = {one.request.key for one in sampled if one.failure}
        for chunk in chunks:
            # The blocks of one that failed hold nothing that another request may use.
            if chunk.request.status is Status.RUNNING and chunk.request.key not in failed:
                self.scheduler.computed(chunk.request, chunk.end)
                if chunk.request.hands_over:
                    self.transfers.offers.advance(chunk.request)
        gained = [
            self._fail(one.request, one.failure) if one.failure else self._gained(one)
            for one in sampled
            if one.request.status is not Status.FINISHED
        ]
        self.transfers.offers.seal(gained)
        self._step_times.done()
        self.stages.look()
        return gained

    def advance(self) -> list[RequestOutput]:
        """All that time, peers and lower tiers have brought: deadlines, KV, embeddings."""
        outputs = [
            self._fail(request, DeadlineExceeded("the request's deadline has passed"))
            for request in self._live.late(self._clock())
        ]
        self.tiers.advance()
        for failed, cause in self.transfers.poll():
            outputs.append(self._fail(failed, cause))
        for key, error in self.scheduler.embeddings.poll():
            request = self._live.find(key)
            if request is not None:
                outputs.append(self._fail(request, error))
        self.times.have_embeddings(self.scheduler.embeddings.take_completed())
        self._note_starts()
        for request, arrival in self.transfers.arrived:
            taken = self._choices.adopted(request, arrival)
            outputs += [self._gained(one, adopted=True) for one in taken]
        self.transfers.arrived.clear()
        self.transfers.begin()  # after all that gives blocks back
        self.stages.look()
        return outputs

    def _fail(self, request: Request, error: TriptychError) -> RequestOutput:
        self.tiers.failed(request, error)  # before its blocks are given back
        self._drop(request)
        return failure(request.source.request_id, request.index, error)

    def fail_all(self, error: TriptychError) -> list[RequestOutput]:
        """After a step that raised: all requests end, also those whose last outputs it has lost."""
        self.abort(self._live.names())
        self.transfers.arrived.clear()
        self.transfers.offers.seal([])  # as none goes on, blocks that are held are given back
        return [failure(name, 0, error) for name in self._in_step]

    def _gained(self, sampled: Sampled, *, adopted: bool = False) -> RequestOutput:
        """What a choice puts out; tokens that are `adopted` were counted where they were made."""
        keeps_room = self._runs.holds(sampled.request)
        output = self._outputs.gained(sampled, adopted=adopted, keeps_room=keeps_room)
        if output.finish_reason is not None:
            self._finish(sampled.request)
        return output

    def _finish(self, request: Request) -> None:
        self._live.remove(request)
        if request.hands_over and request.blocks:
            self.transfers.offers.hold(request)
        else:
            self.scheduler.finish(request)

    def check_integrity(self) -> list[str]:
        """Compare every book with every other; [] if all agree."""
        owners = [r.blocks for r in self.scheduler.all_requests()]
        owners += [*self.transfers.owned_blocks(), *self.tiers.owned_blocks()]
        problems = self.scheduler.blocks.check_integrity(owners) + self.tiers.check_integrity()
        problems += self.scheduler.embeddings.check_integrity({r.key for r in self._live})
        return problems + self._live.check_integrity(self.scheduler.keys())
