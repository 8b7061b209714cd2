"""WorkerCalls of one attempt to the workers that prefill and decode."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

import msgspec

from protocol.decoding import decoded
from protocol.errors import TriptychError, UpstreamError, from_info
from protocol.generate import ABORT_PATH, GENERATE_PATH, GenerateAnswer, encode_generate
from protocol.types import GenerateRequest, MMItem, RequestOutput
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.placement.own_view import Plan
from proxy.tokens.outputs import outputs_of
from proxy.tokens.request_state import TokensRequest, another_may_help, at_fault, lost_embeddings
from proxy.upstream.client import Patience, UpstreamClient

Steps = AsyncGenerator[list[RequestOutput], None]
_JSON = {"content-type": "application/json"}
_ABORT_S = 2.0


@dataclass(frozen=True)
class StageTimes:
    """Seconds: a whole prefill call, to a stream's first event, between events."""

    prefill_s: float = 120.0
    first_s: float = 120.0
    stall_s: float = 60.0


@dataclass
class Attempt:
    """`wanted` is what is left of the state, with its places; `failed` are workers at fault.
    `fetched`: decode has said something, so it has done with the KV that prefill held."""

    state: TokensRequest
    wanted: GenerateRequest
    plan: Plan
    failed: list[Instance] = field(default_factory=list)
    fetched: bool = False

    @property
    def items(self) -> list[MMItem]:
        """Those whose bytes are at hand."""
        return [i for i in self.wanted.mm_items if i.mm_hash in self.state.media]


class WorkerCalls:
    """Every call is counted, bounded in time, checked, and charged to its worker."""

    def __init__(self, client: UpstreamClient, metrics: ProxyMetrics, times: StageTimes) -> None:
        self._client = client
        self._metrics = metrics
        self._times = times

    async def prefill(self, attempt: Attempt, worker: Instance) -> GenerateAnswer:
        """The prompt alone: what has been emitted is decode's to take in."""
        wanted = msgspec.structs.replace(
            attempt.wanted,
            kv_transfer_params={"do_remote_decode": True},
            emitted={},
            deadline_s=attempt.state.left_s,
        )
        body = encode_generate(wanted, stream=False)
        patience = self._patience(attempt, worker, self._times.prefill_s)
        with self._asking(attempt, worker):
            data = await self._client.post(worker.url + GENERATE_PATH, body, _JSON, patience)
            answer = _parsed(data, worker, wanted)
            self._check_prefilled(attempt, worker, wanted, answer)
        return answer

    def _check_prefilled(
        self, attempt: Attempt, worker: Instance, wanted: GenerateRequest, answer: GenerateAnswer
    ) -> None:
        """One token of each choice, or its end, and this request's own KV."""
        choices = attempt.state.choices(wanted)
        choices.most = 1
        choices.take(outputs_of(answer))
        if not choices.begun:
            raise UpstreamError(f"{worker.url} did not prefill every choice")
        name = (answer.kv_transfer_params or {}).get("remote_request_id", answer.request_id)
        if name != answer.request_id:
            raise UpstreamError(f"{worker.url} handed over another request's KV")

    async def stream(
        self, attempt: Attempt, worker: Instance, wanted: GenerateRequest, *, ahead: bool = False
    ) -> Steps:
        """What a worker decodes; `ahead` of prefill, it may take prefill's time as well. The call
        is over, and a success, before its last outputs are handed out: whoever has them need not
        come again."""
        wanted = msgspec.structs.replace(wanted, deadline_s=attempt.state.left_s)
        body = encode_generate(wanted, stream=True)
        answer_s = self._times.first_s + (self._times.prefill_s if ahead else 0.0)
        patience = self._patience(attempt, worker, answer_s)
        choices = attempt.state.choices(wanted)
        outputs: list[RequestOutput] = []
        with self._asking(attempt, worker):
            events = self._client.stream(worker.url + GENERATE_PATH, body, _JSON, patience)
            async with contextlib.AsyncExitStack() as unfinished:
                unfinished.push_async_callback(events.aclose)
                async for event in events:
                    outputs = outputs_of(_parsed(event, worker, wanted))
                    choices.take(outputs)
                    attempt.fetched = attempt.fetched or bool(outputs)
                    if choices.complete:
                        break
                    if outputs:
                        yield outputs
                else:
                    raise UpstreamError(f"{worker.url} ended the request early")
                unfinished.pop_all()
                self._client.finish(events)
        yield outputs

    def _patience(self, attempt: Attempt, worker: Instance, answer_s: float) -> Patience:
        deadline, stall_s = attempt.state.deadline, self._times.stall_s
        return Patience(deadline, answer_s, stall_s, lambda: not worker.lost)

    @contextlib.contextmanager
    def _asking(self, attempt: Attempt, worker: Instance) -> Iterator[None]:
        """A call to a worker, its success or failure noted on its breaker."""
        worker.breaker.started(time.monotonic())
        with worker.serving():
            try:
                yield
            except TriptychError as error:
                self._note(attempt, worker, error)
                raise
            except GeneratorExit:  # left between two outputs: a stop string has ended the answer
                worker.breaker.succeeded()
                raise
        worker.breaker.succeeded()

    def _note(self, attempt: Attempt, worker: Instance, error: TriptychError) -> None:
        if not another_may_help(error) or lost_embeddings(error):
            return
        self._metrics.upstream_failures.labels(worker.role, error.code).inc()
        attempt.state.avoid.append(worker)
        if at_fault(error):
            attempt.failed.append(worker)
            worker.suspect = True
            worker.breaker.failed(time.monotonic())

    def release(self, worker: Instance, request_id: str) -> None:
        """Tell prefill that nobody will fetch this attempt's KV; nobody waits for that."""
        self._client.beside(self._abort(worker, request_id))

    async def _abort(self, worker: Instance, request_id: str) -> None:
        body = msgspec.json.encode({"request_ids": [request_id]})
        with contextlib.suppress(TriptychError):
            await self._client.post(worker.url + ABORT_PATH, body, _JSON, Patience.of(_ABORT_S))


def _parsed(data: bytes, worker: Instance, wanted: GenerateRequest) -> GenerateAnswer:
    def nonsense(what: str) -> UpstreamError:
        return UpstreamError(f"{worker.url} answered with nonsense: {what}")

    answer = decoded(data, GenerateAnswer, fail=nonsense)
    if answer.error is not None:
        raise from_info(answer.error)
    if answer.request_id != wanted.request_id:
        raise UpstreamError(f"{worker.url} answered another request")
    return answer
