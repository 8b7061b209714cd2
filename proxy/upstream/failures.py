"""Calls to workers that fail: what went wrong, and which worker it counts against.

A failure counts against a worker only if another worker would have done better. So what a worker
says of the request (a 400) is the client's business, a worker that is full or drains is not broken,
and a shortage of this process counts against no worker.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.decoding import decoded
from protocol.errors import (
    LONGEST_RETRY_S,
    DeadlineExceeded,
    EmbeddingLost,
    NotServing,
    RequestAborted,
    TriptychError,
    Unavailable,
    UpstreamError,
    from_openai,
)
from protocol.fleet_key import refuses_key
from protocol.internal_names import body_without_names
from protocol.shortage import is_own_shortage
from proxy.upstream.answer import Answer

logger = logging.getLogger(__name__)
_BUSY = (429, 503)
_LONGEST_REFUSAL = 1 << 16  # bytes of an answer that is gone through
_RETRYABLE = (408, 429, 500, 502, 503, 504)
_KEYS = (401, 403)
_NOT_IMPLEMENTED = 501  # vLLM, for a field or a task that its model has not
REFUSED, DROPPED, NOT_A_WORKER = "refused", "dropped", "not_a_worker"
WRONG_KEY, FORBIDDEN = "wrong_fleet_key", "forbidden"
SILENT, UNCONNECTED, OTHER_INSTANCE = "silent", "unconnected", "other_instance"
_GONE = (REFUSED, DROPPED, SILENT, UNCONNECTED, OTHER_INSTANCE)
UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
"""What the system says of a host that it gets no answer from."""


class CallFailed(UpstreamError):
    """A worker that did not answer as it should. `kind` is a word for metrics.

    `sent` is False if the worker cannot have seen the request; `stale` is True if a kept connection
    turned out to be closed already, which counts against no worker.
    """

    def __init__(
        self, message: str, kind: str, *, sent: bool = True, stale: bool = False, status: int = 502
    ) -> None:
        super().__init__(message)
        self.kind, self.sent, self.stale, self.status = kind, sent, stale, status
        if status == 504:
            self.code = "deadline_exceeded"


class ProxyExhausted(Unavailable):
    """This process has no sockets, ports or memory left for another connection."""

    code = "proxy_exhausted"


class Refused(TriptychError):
    """A worker answered with an error; `answer` is what it said, `worker_code` the code in it.

    `again`: another worker may do better. Status and code are those of our own tree: a worker's
    words are no labels for metrics.
    """

    foreign = True

    def __init__(self, url: str, answer: Answer) -> None:
        try:
            content: Any = decoded(answer.body, Any, fail=ValueError)
        except ValueError:
            content = None
        told = from_openai(answer.status, content)
        super().__init__(told.message, param=told.param, code=type(told).code)
        self.url, self.answer, self.worker_code = url, answer, told.code
        self.status, self.type = told.status, told.type
        final = 400 <= answer.status < 500 or answer.status == _NOT_IMPLEMENTED
        self.again = answer.status in _RETRYABLE or not final
        self._place(content)

    def _place(self, content: Any) -> None:
        """What a client may be told of it, and when to ask again."""
        busy = self.answer.retry_after
        if self.status in _BUSY:
            self.retry_after_s = float(busy) if busy.isdigit() else 1.0
        elif self.status >= 500 and self.status not in (502, 504):
            self.status, self.code = UpstreamError.status, UpstreamError.code
            self.message = f"{self.url}: {self.message}"
        if is_no_worker(self.answer.status, content):
            self.again, self.worker_code = True, NOT_A_WORKER
        elif refuses_key(self.answer.status, content):  # our fault or the worker's, no client's
            self.again, self.worker_code = True, WRONG_KEY
            self._ours()

    def forbidden(self) -> None:
        """The worker does not take this proxy's key."""
        self.again, self.worker_code = True, FORBIDDEN
        self.message = refused_key(self.url, self.answer.status)
        self._ours()

    def _ours(self) -> None:
        self.status, self.code, self.type = 502, UpstreamError.code, UpstreamError.type

    def told(self) -> Answer:
        """What a client gets whose fault it is: the worker's words, without names of processes."""
        body, after = self.answer.body, b""
        if len(body) <= _LONGEST_REFUSAL:
            body = body_without_names(body)
        else:
            body = msgspec.json.encode(self.to_openai())
        if body != self.answer.body:
            logger.info("%s: HTTP %d: %.1000s", self.url, self.answer.status, self.message)
        if self.answer.retry_after.isdigit():
            after = b"%d" % min(float(self.answer.retry_after), LONGEST_RETRY_S)
        return self.answer._replace(body=body, retry_after=after)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failed call says.

    `kind`: a word for metrics, the same for the same way of failing.
    `retry`: another worker may do better, or the same one later.
    `charged`: it speaks against the worker.
    `gone`: the worker takes no requests, until a probe finds it well.
    `sent`: the worker may have begun to work on the request.
    `elsewhere`: the request had better not come back there.
    """

    kind: str
    retry: bool
    charged: bool
    gone: bool = False
    sent: bool = True
    elsewhere: bool = True


def failure_of(error: TriptychError) -> Failure:
    """What an error says that a call to a worker has ended with."""
    # The order counts: `ProxyExhausted` is an `Unavailable`, `CallFailed` an `UpstreamError`.
    match error:
        case ProxyExhausted():
            return Failure(error.code, True, False, sent=False, elsewhere=False)
        case CallFailed():
            return Failure(error.kind, True, True, error.kind in _GONE, error.sent)
        case Refused():
            return _refusal(error)
        # Its own time was up, which speaks of no worker: one that stalls is a `CallFailed`.
        case DeadlineExceeded():
            return Failure(str(error.status), True, False)
        case _ if error.code == EmbeddingLost.code:  # the encoder's loss, not the consumer's
            return Failure(error.code, True, False, elsewhere=False)
    gone = error.code == NotServing.code
    # 499: the worker gave the request up. What is below speaks of the request itself.
    retry = error.status >= RequestAborted.status
    charged = retry and error.status != Unavailable.status
    return Failure(str(error.status), retry, charged, gone)


def _refusal(error: Refused) -> Failure:
    status = error.answer.status
    if error.worker_code in (NOT_A_WORKER, WRONG_KEY, FORBIDDEN):
        return Failure(error.worker_code, True, True)
    gone = error.worker_code == NotServing.code
    return Failure(str(status), error.again, error.again and status not in _BUSY, gone)


def refused_key(url: str, status: int) -> str:
    """What has to be mended where a worker does not take this proxy's calls."""
    return f"{url}: HTTP {status}: it asks for another API key than this proxy's --worker-api-key"


def refuses_caller(status: int) -> bool:
    """Whether a worker says that it does not take the caller's key."""
    return status in _KEYS


def judge_key(error: TriptychError, *, own: bool) -> None:
    """Whose fault it is that a worker does not take the caller's key: the client's if it brought
    its `own`, or could have."""
    if isinstance(error, Refused) and not own and refuses_caller(error.answer.status):
        error.forbidden()


def is_no_worker(status: int, content: object) -> bool:
    """Whether an answer is no worker's: the server at its address does not know the route. (A
    worker says in an error's own form that it has no such model.)"""
    if status == 405:
        return True
    return status == 404 and not (isinstance(content, dict) and content.get("error"))


def no_connection(url: str) -> CallFailed:
    """Nothing has answered at a worker's address."""
    return CallFailed(f"{url} takes no connection", UNCONNECTED, sent=False)


def is_silence(error: TriptychError) -> bool:
    """Whether a worker has said nothing, be it that it refuses."""
    if isinstance(error, CallFailed):
        return error.kind == UNCONNECTED
    return isinstance(error, DeadlineExceeded)


def unconnected(url: str, error: OSError) -> CallFailed | ProxyExhausted:
    """Why there is no connection to a worker."""
    text = f"{url} cannot be reached: {error.strerror or error}"
    if error.errno in UNREACHABLE:
        return no_connection(url)
    if is_own_shortage(error):
        return ProxyExhausted(text, retry_after_s=1.0)
    return CallFailed(text, REFUSED, sent=False)
