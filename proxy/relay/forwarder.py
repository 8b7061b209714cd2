"""Requests for the routes that are passed on, each answered by one worker that has the route."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from protocol.errors import TriptychError
from proxy.fleet.worker import Instance
from proxy.gateway import Gateway
from proxy.placement.own_view import ONE_WORKER, by_load
from proxy.placement.planner import AttemptEnd, Need, Plan
from proxy.relay.lacking import LackingWorkers, NoRoute, WorkerLacksRoute, lacks_route
from proxy.relay.message_keys import passed_need
from proxy.relay.passed_answers import check_passed, checked_events
from proxy.relay.passed_encoding import PassedEncoding
from proxy.relay.passed_prompts import FORMS
from proxy.relay.passed_request import PassedRequest
from proxy.upstream.answer import Answer
from proxy.upstream.failures import Refused
from proxy.upstream.patience import Patience, RawAnswer

_BYTES_PER_TOKEN = 4


class Forwarder:
    """Passes requests on: admitted, placed, tried again and charged as any other."""

    def __init__(self, gateway: Gateway) -> None:
        self._config = gateway.config
        self._client = gateway.client
        self._fleet = gateway.fleet
        self._planner = gateway.planner
        self._dispatch = gateway.dispatch
        self._encoding = PassedEncoding(gateway)
        self._lacking = LackingWorkers()

    async def run(self, request: PassedRequest) -> AsyncGenerator[Answer, None]:
        """The answer; of a stream its head with the first events, then bodies with further events.

        Raises `NoRoute` if no worker has the route, `Refused` with what a worker has said, and
        what the last attempt has failed with. Closing the generator ends the call.
        """
        self._avoid_lacking(request)
        async with self._admitted(request):
            while True:
                try:
                    async with contextlib.aclosing(self._attempt(request)) as pieces:
                        async for piece in pieces:
                            request.started = True
                            yield piece
                    return
                # Without `again`: the worker is well, and no attempt counts.
                except WorkerLacksRoute:
                    self._avoid_lacking(request)
                except TriptychError as error:
                    if request.begun or request.once:
                        raise
                    await self._dispatch.again(request, error, "request")

    def _avoid_lacking(self, request: PassedRequest) -> None:
        """Ask another worker, also one that has failed the request before."""
        lacking = self._lacking.of(request.route)
        able = [
            *self._fleet.usable("decode", (), request.model),
            *self._fleet.usable("prefill", (), request.model),
        ]
        if request.only is not None:
            # It alone has what the request is about: no other can stand in.
            able = [request.only]
        if self._fleet.relayed != "all" or (able and all(one in lacking for one in able)):
            raise NoRoute(f"no worker here has {request.route.name}")
        request.avoid = lacking

    def _admitted(self, request: PassedRequest) -> AbstractAsyncContextManager[None]:
        admission = self._planner.admission
        if admission is None or not request.route.computes:
            return contextlib.nullcontext()
        return admission.admitted(request, len(request.body) / _BYTES_PER_TOKEN)

    async def _attempt(self, request: PassedRequest) -> AsyncGenerator[Answer, None]:
        name = f"{request.request_id}-{random.getrandbits(64):016x}"
        plan = request.plan = await self._placed(request, name)
        request.worker, request.placed_as = plan.decode, name
        end: AttemptEnd | None = None
        try:
            body = await self._body(request, plan.decode)
            with self._dispatch.calling(request, plan.decode, "decode") as call:
                async with contextlib.aclosing(self._call(request, plan.decode, body)) as pieces:
                    async for piece in pieces:
                        if piece.is_stream and request.need is not None and not request.begun:
                            self._planner.prefilled(name, call.so_far_s)
                        yield piece
            end = AttemptEnd(False, (), call.elapsed_s)
        finally:
            if request.route.computes:
                end = end or AttemptEnd(aborted=True, failed=request.take_blamed())
                self._planner.over(name, end)

    async def _placed(self, request: PassedRequest, name: str) -> Plan:
        if request.only is not None:
            return Plan(request.only)
        if not request.route.computes:
            return self._by_load(request)
        need = self._need(request, name)
        plan = await self._dispatch.placed(request, lambda: self._planner.place(request, need))
        if plan.decode not in self._lacking.of(request.route):
            return plan
        # A master has no other worker that decodes; one that prefills may have the route.
        return self._by_load(request)

    def _need(self, request: PassedRequest, name: str) -> Need:
        """Of an attempt. Only a master makes use of what the prompt is."""
        form = FORMS.get(request.route.path)
        if form is None or request.read is None or not self._planner.asks:
            tokens = max(1, len(request.body) // _BYTES_PER_TOKEN)
            return Need(
                name, tokens, 1, (), lambda size: [], request.model, predicted=True, alone=True
            )  # fmt: skip
        if request.need is None:
            need, request.names = passed_need(request.read, request.items, form, name)
            # The master would charge encoders that are not asked.
            request.need = need if self._encoding.fetched else replace(need, items=())
        return replace(request.need, request_id=name)

    def _by_load(self, request: PassedRequest) -> Plan:
        fleet, media = self._fleet, bool(request.items)
        return by_load(fleet, ONE_WORKER, request.avoid, request.model, media=media)

    async def _body(self, request: PassedRequest, instance: Instance) -> bytes:
        """What the worker is sent: with embeddings of the media, where it needs them."""
        if request.read is None or not self._encoding.needed(request, instance):
            return request.body
        with request.record.during("encode"):
            params = await self._encoding.params(request, instance)
        return b"".join(request.read.body_with(params))

    async def _call(
        self, request: PassedRequest, instance: Instance, body: bytes
    ) -> AsyncGenerator[Answer, None]:
        config = self._config
        answer_s = config.first_token_timeout if request.stream else config.decode_timeout
        patience = Patience(request.deadline, answer_s, config.stall_timeout, instance)
        url = instance.url + request.target
        opened = self._client.opened(request.route.method, url, body, request.headers, patience)
        async with opened as answer:
            if answer.head.status == 200 and answer.head.is_stream:
                pieces = answer.events()
                if request.route.computes:
                    pieces = checked_events(instance.url, pieces)
                async with contextlib.aclosing(pieces):
                    async for events in pieces:
                        yield answer.head._replace(body=events)
                return
            yield await self._whole(request, instance, answer)

    async def _whole(self, request: PassedRequest, instance: Instance, answer: RawAnswer) -> Answer:
        whole = await answer.whole(self._config.max_answer_bytes)
        if lacks_route(whole, request.route.method, request.target.partition("?")[0]):
            self._lacking.add(instance, request.route)
            raise WorkerLacksRoute(f"{instance.url} has no {request.route.name}")
        if not 200 <= whole.status < 300:
            raise Refused(instance.url, whole)
        # A stored response that once failed is no failure of the request for it.
        return check_passed(instance.url, whole) if request.route.computes else whole
