"""Streams that break after their first event, resumed on another worker.

The worker renders the client's request itself, which gives the prompt and how it would have been
sampled, the server's own defaults included; then it generates from prompt and tokens so far. Only
what comes out exact is resumed (`proxy.relay.resume.eligibility`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from protocol.decoding import decoded
from protocol.errors import TriptychError
from protocol.generate import GENERATE_PATH, RENDER_PATH
from proxy.config import ProxyConfig
from proxy.dispatch import Dispatch
from proxy.fleet.fleet import NoWorker
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.relay.bodies import TOKEN_IDS
from proxy.relay.request_state import RelayedRequest
from proxy.relay.response_validation import check_status, check_stream
from proxy.relay.resume.continuation import Continuation
from proxy.relay.resume.eligibility import can_be_resumed
from proxy.relay.resume.progress import DONE, Chunks, Progress
from proxy.relay.resume.recorder import Recorder
from proxy.upstream.answer import Answer, AnswerLimits, Body
from proxy.upstream.connection_pool import ConnectionPool
from proxy.upstream.exchange import Exchange
from proxy.upstream.failures import CallFailed, ProxyExhausted, Refused
from proxy.upstream.pools import ConnectionPools

# These count from where an answer begins, which would be a later place here.
_POSITIONAL = ("frequency_penalty", "presence_penalty", "min_tokens", "stop", "structured_outputs")
# With one of these the prompt is more than its token ids.
_OTHERWISE = ("features", "content_parts", "reasoning_parser_kwargs")
# Each call has its own.
_NOT_PASSED_ON = ("request_id", "stream_options", "token_offsets")
_MAX_TOKENS = 16  # vLLM's own default, which it leaves out


class Inexact(Exception):
    """This worker would not go on as the first one would have."""


class Resumer:
    """Completes streams on other workers."""

    def __init__(
        self,
        config: ProxyConfig,
        metrics: ProxyMetrics,
        dispatch: Dispatch,
        pools: ConnectionPools,
    ) -> None:
        self._fleet = dispatch.fleet
        self._metrics = metrics
        self._dispatch = dispatch
        self._pools = pools
        self._limits = AnswerLimits(
            config.first_token_timeout, config.stall_timeout, config.max_answer_bytes
        )

    def recorder(self, request: RelayedRequest, instance: Instance) -> Recorder | None:
        """For a stream of this worker that another one could go on with."""
        others = self._fleet.resumers > instance.resumes
        if not (others and request.client.is_chat and can_be_resumed(request.body)):
            return None
        asked = request.body.fields.get(TOKEN_IDS) is True
        return Recorder(instance.url, request.response.show, asked=asked)

    async def go_on(self, request: RelayedRequest, failure: TriptychError) -> None:
        """Complete a stream that has ended with `failure`; raises that if it cannot be done.

        As often as a request is tried at all, counted from where the stream last made progress.
        """
        if request.recorder is None or not request.recorder.progress.resumable:
            raise failure
        progress, latest = request.recorder.progress, failure
        last = request.decoder
        assert last is not None
        chunks = _chunks(request, last)
        request.in_a_row = request.failures = 0  # it has had its first tokens
        while progress.finish is None:
            try:
                await self._dispatch.again(request, latest, "resumed")
                last = self._choose(request.avoid, last)
            except TriptychError as error:
                # `again` raises the very `NoWorker` that it was given once the request has waited
                # enough. The client hears of what broke its stream, not of the tries after that.
                if not isinstance(error, NoWorker) or error is latest or not self._able(last):
                    raise failure from None
                latest = error
                continue
            chunks, had = _chunks(request, last), len(progress.tokens)
            try:
                with self._dispatch.calling(request, last, "decode"):
                    await self._work(request, self._pools.of(last), progress, chunks)
            except (CallFailed, Refused, ProxyExhausted) as another:
                latest = another
            except Inexact:
                raise failure from None
            if len(progress.tokens) > had:
                request.progressed()
        _complete(request, progress, chunks)

    def _able(self, last: Instance) -> bool:
        """Whether another worker could resume the stream once it is up."""
        return any(_follows(one, last) for one in self._fleet.decode)

    def _choose(self, avoid: Sequence[Instance], last: Instance) -> Instance:
        """Not the one that has just failed, and those that failed before only if need be."""
        now = time.monotonic()
        able = [i for i in self._fleet.decode if i.usable(now) and _follows(i, last)]
        if not able:
            raise NoWorker("no worker is up that could resume the stream")
        return min(able, key=lambda i: (i in avoid, i.suspect, i.in_flight))

    async def _work(
        self, request: RelayedRequest, pool: ConnectionPool, progress: Progress, chunks: Chunks
    ) -> None:
        """Until the answer is complete, as this worker goes on with it."""
        exchange, answer = await self._ask(request, pool, RENDER_PATH, request.body.bare)
        exchange.abort()  # should it stream, against all agreement
        check_status(pool.url, answer)
        body = _from_tokens(_rendered(pool.url, answer), progress)
        if body is None:
            request.response.forward(chunks.delta("", [], "length", None))
            progress.finish = "length"
            return
        rest = Continuation(pool.url, progress, chunks, request.response.forward)
        exchange, answer = await self._ask(request, pool, GENERATE_PATH, (body,), rest.feed)
        try:
            check_stream(pool.url, answer)
            request.source(exchange)
            rest.feed(answer.body)
            await exchange.forward()
        finally:
            request.source(None)
            exchange.abort()

    async def _ask(
        self,
        request: RelayedRequest,
        pool: ConnectionPool,
        path: str,
        body: Body,
        sink: Callable[[bytes], None] | None = None,
    ) -> tuple[Exchange, Answer]:
        """A worker may still be busy with an earlier try of this request, so that each has a name
        of its own."""
        fields = request.client.fields(b"-%d" % len(request.avoid))
        return await pool.ask(path, fields, body, self._limits, sink)


def _follows(other: Instance, last: Instance) -> bool:
    """Whether a worker could resume what another one of the same model has begun."""
    return other.resumes and other is not last and other.model == last.model


def _chunks(request: RelayedRequest, instance: Instance) -> Chunks:
    """As this worker would have written them."""
    recorder = request.recorder
    assert recorder is not None and recorder.progress.head is not None
    options = request.body.fields.get("stream_options") or {}
    usage = bool(options.get("include_usage"))
    return Chunks(recorder.progress.head, recorder.asked, usage, instance.fingerprint)


def _complete(request: RelayedRequest, progress: Progress, chunks: Chunks) -> None:
    """What follows the last token, of which any worker would say the same."""
    rest = DONE
    if chunks.usage and not progress.counted:
        rest = chunks.counts(len(progress.prompt), len(progress.tokens)) + DONE
    request.response.forward(rest)
    request.response.end()


def _rendered(url: str, answer: Answer) -> dict[str, Any]:
    def invalid(what: str) -> CallFailed:
        return CallFailed(f"{url}: the rendered prompt is not valid: {what}", "garbage")

    return decoded(answer.body, dict[str, Any], fail=invalid)


def _from_tokens(rendered: dict[str, Any], progress: Progress) -> bytes | None:
    """The body that generates what follows the tokens that are sure, None if nothing may follow.
    Raises `Inexact` if that would not be what the first worker would have said.

    Penalties of repetition count the prompt too: tokens may move there.
    """
    params = rendered.get("sampling_params")
    if not isinstance(params, dict) or rendered.get("token_ids") != progress.prompt:
        raise Inexact
    otherwise = any(rendered.get(name) for name in _OTHERWISE)
    if otherwise or params.get("temperature") != 0 or any(params.get(n) for n in _POSITIONAL):
        raise Inexact
    most = params.get("max_tokens", _MAX_TOKENS)
    if not isinstance(most, int):
        raise Inexact
    left = most - progress.sure
    if left <= 0:
        return None
    body = {name: value for name, value in rendered.items() if name not in _NOT_PASSED_ON}
    body |= {
        "token_ids": progress.prompt + progress.tokens[: progress.sure],
        "sampling_params": {**params, "max_tokens": left},
        "output_mode": "text",
        "stream": True,
    }
    return msgspec.json.encode(body)
