"""Streams that break after their first event, gone on with by another worker.

The worker renders the client's request itself, which gives the prompt and how it would have been
sampled, the server's own defaults included; then it generates from prompt and tokens so far. Only
what comes out exact is resumed (`proxy.relay.resume.eligibility`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from protocol.decoding import decoded
from protocol.generate import GENERATE_PATH, RENDER_PATH
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.relay.attempts import Attempts, Failure
from proxy.relay.bodies import TOKEN_IDS
from proxy.relay.data_urls import Body, size_of
from proxy.relay.request_state import RelayedRequest
from proxy.relay.response_validation import Refused, check_status, check_stream
from proxy.relay.resume.continuation import Continuation
from proxy.relay.resume.eligibility import can_be_resumed
from proxy.relay.resume.progress import DONE, Chunks, Progress
from proxy.relay.resume.recorder import Recorder
from proxy.upstream.connection import Answer, CallFailed, Limits
from proxy.upstream.connection_pool import ConnectionPool
from proxy.upstream.exchange import Exchange

_POSITIONAL = ("frequency_penalty", "presence_penalty", "min_tokens", "stop", "structured_outputs")
_OTHERWISE = ("features", "content_parts", "reasoning_parser_kwargs")
_NOT_PASSED_ON = ("request_id", "stream_options", "token_offsets")
_MAX_TOKENS = 16  # vLLM's own default, which it leaves out


class Inexact(Exception):
    """This worker would not go on as the first one would have."""


class Resumer:
    def __init__(
        self, fleet: Fleet, config: ProxyConfig, metrics: ProxyMetrics, attempts: Attempts
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._attempts = attempts
        self._limits = Limits(
            config.first_token_timeout, config.stall_timeout, config.max_answer_bytes
        )

    def recorder(self, job: RelayedRequest, instance: Instance) -> Recorder | None:
        """For a stream of this worker that another one could go on with."""
        others = self._fleet.resumers > instance.resumes
        if not (others and job.call.is_chat and can_be_resumed(job.request)):
            return None
        asked = job.request.fields.get(TOKEN_IDS) is True
        return Recorder(instance.url, job.reply.show, asked=asked)

    async def go_on(self, job: RelayedRequest, failure: Failure) -> None:
        """Complete a stream that has ended with `failure`; raises that if it cannot be done.

        As often as a request is tried at all, counted from where the stream last made progress.
        """
        if job.recorder is None or not job.recorder.progress.resumable:
            raise failure
        progress, latest, attempt = job.recorder.progress, failure, 0
        chunks = _chunks(job, job.avoid[-1])
        while progress.finish is None:
            instance, had = self._choose(job.avoid), len(progress.tokens)
            if instance is None or not self._attempts.again(latest, attempt, "resumed"):
                raise failure
            await self._attempts.backoff(attempt)
            chunks = _chunks(job, instance)
            try:
                await self._attempts.once(instance, job.avoid, self._work(job, progress, chunks))
            except (CallFailed, Refused) as another:
                latest = another
            except Inexact:
                raise failure from None
            attempt = 0 if len(progress.tokens) > had else attempt + 1
        _complete(job, progress, chunks)

    def _choose(self, avoid: Sequence[Instance]) -> Instance | None:
        """Not the one that has just failed, and those that failed before only if need be."""
        now = time.monotonic()
        able = [i for i in self._fleet.decode if i.resumes and i.usable(now) and i is not avoid[-1]]
        return min(able, key=lambda i: (i in avoid, i.suspect, i.in_flight), default=None)

    def _work(
        self, job: RelayedRequest, progress: Progress, chunks: Chunks
    ) -> Callable[[ConnectionPool, bool], Awaitable[None]]:
        async def work(pool: ConnectionPool, fresh: bool) -> None:
            exchange, answer = await self._ask(job, pool, RENDER_PATH, job.request.bare, fresh)
            exchange.abort()  # should it stream, against all agreement
            check_status(pool.url, answer)
            body = _from_tokens(_rendered(pool.url, answer), progress)
            if body is None:
                job.reply.forward(chunks.delta("", [], "length", None))
                progress.finish = "length"
                return
            exchange, answer = await self._ask(job, pool, GENERATE_PATH, (body,), fresh)
            try:
                check_stream(pool.url, answer)
                rest = Continuation(pool.url, progress, chunks, job.reply.forward)
                job.source(exchange)
                rest.feed(answer.body)
                await exchange.forward(rest.feed)
            finally:
                job.source(None)
                exchange.abort()

        return work

    async def _ask(
        self, job: RelayedRequest, pool: ConnectionPool, path: str, body: Body, fresh: bool
    ) -> tuple[Exchange, Answer]:
        """A stream goes on in the exchange, which is the caller's to end. A worker may still be
        busy with an earlier try of this request, so that each has a name of its own."""
        fields = job.call.fields(b"-%d" % len(job.avoid))
        exchange = await pool.start(path, fields, body, self._limits, fresh=fresh)
        self._metrics.sent(size_of(body))
        try:
            return exchange, await exchange.ready
        except BaseException:
            exchange.abort()
            raise


def _chunks(job: RelayedRequest, instance: Instance) -> Chunks:
    """As this worker would have written them."""
    assert job.recorder is not None and job.recorder.progress.head is not None
    options = job.request.fields.get("stream_options") or {}
    usage = bool(options.get("include_usage"))
    return Chunks(job.recorder.progress.head, job.recorder.asked, usage, instance.fingerprint)


def _complete(job: RelayedRequest, progress: Progress, chunks: Chunks) -> None:
    """What follows the last token, of which any worker would say the same."""
    rest = DONE
    if chunks.usage and not progress.counted:
        rest = chunks.counts(len(progress.prompt), len(progress.tokens)) + DONE
    job.reply.forward(rest)
    job.reply.end()


def _rendered(url: str, answer: Answer) -> dict[str, Any]:
    nonsense = CallFailed(f"{url} answered with nonsense", "garbage")
    return decoded(answer.body, dict[str, Any], fail=lambda what: nonsense)


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
