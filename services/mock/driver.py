"""A mock engine on an event loop's clock: requests in, outputs to their readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine
from itertools import groupby
from operator import attrgetter
from typing import Any

from protocol.errors import RequestAborted, TriptychError, error_info, from_info
from protocol.refs import KVRef
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.mock.actions import Action, AskEmbedding, AskKV, ConfirmKV, KeepKV, ReleaseKV, Step
from services.mock.engine import Engine
from services.mock.kv_offers import OfferBody
from services.mock.peers import Peers
from services.mock.publisher import Publisher
from services.mock.waiting import Observe, Sink, Waiters

# In a row; then other callbacks of the event loop have their turn.
_STEPS_AT_ONCE = 64
_TICK_S = 0.001  # the resolution of the loop's timers


class Driver:
    """Owns an engine; every use of it goes through here, on one event loop."""

    def __init__(self, engine: Engine, peers: Peers, publisher: Publisher | None = None) -> None:
        self.engine = engine
        self._peers = peers
        self._publisher = publisher
        self._sinks: dict[str, Sink] = {}
        self._encoding: dict[str, asyncio.Queue[EncodeOutput]] = {}
        self._offered = Waiters()  # for KV, by request
        self._stored = Waiters()  # for embeddings, by mm_hash
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._timer: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    async def generate(
        self,
        request: GenerateRequest,
        local: Collection[str],
        observe: Observe,
        *,
        whole: bool = False,
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """Run a request; yields what it gains, all at once if `whole`. `observe` sees every step.

        Ends when every choice has finished. Closing the iterator earlier aborts the request. An
        error of the engine is raised.
        """
        choices = request.choices
        sink = Sink(choices, observe, whole=whole)
        # Before the sink is known: a request that is refused must not take another's with its id.
        self.engine.add(request, local)
        self._sinks[request.request_id] = sink
        self.wake()
        try:
            while sink.left or sink.outputs:
                yield await sink.take()
        finally:
            del self._sinks[request.request_id]
            if sink.left:
                self.abort([request.request_id])

    async def encode(self, request: EncodeRequest) -> list[EncodeOutput]:
        """Encode items; one output each, in the order of `request.items`."""
        queue: asyncio.Queue[EncodeOutput] = asyncio.Queue()
        wanted = {item.mm_hash for item in request.items}
        outputs: dict[str, EncodeOutput] = {}
        for output in self.engine.add_encode(request):
            outputs[output.mm_hash] = output
        self._encoding[request.request_id] = queue
        self.wake()
        try:
            while wanted - outputs.keys():
                output = await queue.get()
                if not output.mm_hash and output.error is not None:
                    raise from_info(output.error)
                outputs[output.mm_hash] = output
        finally:
            del self._encoding[request.request_id]
            if wanted - outputs.keys():
                self.abort([request.request_id])
        return [outputs[item.mm_hash] for item in request.items]

    def abort(self, request_ids: Collection[str], index: int | None = None) -> None:
        """Stop requests, whose choices end with the reason "abort", or one choice of each, of which
        nothing more is said."""
        self.engine.abort(request_ids, index)
        for name in request_ids if index is None else ():
            if (sink := self._sinks.get(name)) is not None and sink.left:
                sink.put([RequestOutput(name, i, finish_reason="abort") for i in sorted(sink.left)])
            if (queue := self._encoding.get(name)) is not None:
                aborted = error_info(RequestAborted("the request was aborted"))
                queue.put_nowait(EncodeOutput(name, "", error=aborted))
        self.wake()

    async def offer(self, request_id: str, wait_s: float) -> OfferBody | str | None:
        """The KV offered for a request, waiting for one that is still computed or not here yet.

        None after `wait_s`; the reason if it has become certain that there will be no offer.
        """
        found = self.engine.offers.find(request_id)
        if found is not None or wait_s <= 0:
            return found
        settled = await self._offered.wait(request_id, wait_s)
        found = self.engine.offers.find(request_id)
        if found is None and settled:
            return "the request has ended and nothing is held for it"
        return found

    async def embedding(self, mm_hash: str, wait_s: float) -> int | None:
        """Rows of an embedding in the store, waiting until it is there."""
        found = self.engine.ec.rows_of(mm_hash)
        if found is None and wait_s > 0:
            await self._stored.wait(mm_hash, wait_s)
            found = self.engine.ec.rows_of(mm_hash)
        return found

    def wake(self) -> None:
        """Run the engine soon: something has changed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._timer = None
        for _ in range(_STEPS_AT_ONCE):
            step = self.engine.step()
            self._dispatch(step)
            if step.next_time is None:
                return
            delay = step.next_time - self.engine.clock()
            if delay > 0:
                self._timer = self._timer or self._loop.call_later(max(_TICK_S, delay), self._run)
                return
        self.wake()

    def _dispatch(self, step: Step) -> None:
        for request_id, outputs in groupby(step.outputs, attrgetter("request_id")):
            sink = self._sinks.get(request_id)
            if sink is not None:
                sink.put(list(outputs))
        for item in step.encoded:
            self._stored.release(item.mm_hash)
            queue = self._encoding.get(item.request_id)
            if queue is not None:
                queue.put_nowait(item)
        for request_id in step.settled:
            self._offered.release(request_id)
        for action in step.actions:
            self._act(action)
        if self._publisher is not None:
            self._publisher.publish(step.kv_events, step.ec_events)

    def _act(self, action: Action) -> None:
        match action:
            case AskKV(ref):
                self._start(self._ask_kv(ref), ref.request_id)
            case ConfirmKV(ref, generation):
                self._start(self._confirm_kv(ref, generation), ref.request_id)
            case KeepKV(ref):
                self._start(self._peers.keep(ref), "")
            case ReleaseKV(ref):
                # The open question first: its answer would renew the lease of what is let go.
                for task in [t for t, name in self._tasks.items() if name == ref.request_id]:
                    task.cancel()
                self._start(self._peers.release(ref), "")
            case AskEmbedding(mm_hash):
                self._start(self._ask_embedding(action), mm_hash)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = name
        task.add_done_callback(self._tasks.pop)

    async def _ask_kv(self, ref: KVRef) -> None:
        self.engine.loads.answered(ref, await self._peers.ask(ref))
        self.wake()

    async def _confirm_kv(self, ref: KVRef, generation: int) -> None:
        self.engine.loads.confirmed(ref, await self._peers.confirm(ref, generation))
        self.wake()

    async def _ask_embedding(self, action: AskEmbedding) -> None:
        answer = await self._peers.embedding(action.mm_hash, action.host, action.port)
        self.engine.ec.found(action.mm_hash, answer)
        self.wake()

    def fail(self, error: TriptychError) -> None:
        """End all requests with `error`."""
        told = error_info(error)
        for name, sink in self._sinks.items():
            if sink.left:
                sink.put([RequestOutput(name, finish_reason="error", error=told)])
        for name, queue in self._encoding.items():
            queue.put_nowait(EncodeOutput(name, "", error=told))

    def close(self) -> None:
        """Stop; requests that still wait get no answer."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
