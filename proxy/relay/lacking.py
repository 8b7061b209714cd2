"""Which workers have been found to lack a route, so that they are not asked again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from protocol.errors import TriptychError
from proxy.fleet.worker import Instance
from proxy.relay.passed_routes import PassedRoute
from proxy.upstream.answer import Answer

_NOT_FOUND = "Not Found"
_FORGET_S = 60.0  # a worker may be restarted with other routes


class NoRoute(TriptychError):
    """No worker has the route."""

    status = 404
    code = "invalid_request"
    type = "invalid_request_error"


class WorkerLacksRoute(NoRoute):
    """This worker does not; another one may. It is no fault of the worker's."""


class HolderLacksRoute(NoRoute):
    """The response may be there, but no worker that could have it has the route. The status is
    the instance's: an error of a worker gets the class that has its status."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.status = 405


class LackingWorkers:
    """Workers with the routes that they lack, each for a minute. A worker may answer to one method
    of a path and not to another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[tuple[Instance, PassedRoute], float] = {}

    def add(self, instance: Instance, route: PassedRoute) -> None:
        now = self._clock()
        # Old ones go whenever a new one comes, so that workers which left are not kept.
        self._until = {key: until for key, until in self._until.items() if until > now}
        self._until[instance, route] = now + _FORGET_S

    def of(self, route: PassedRoute) -> list[Instance]:
        """The workers known to lack a route."""
        now = self._clock()
        return [
            one for (one, lacks), until in self._until.items() if lacks == route and until > now
        ]


class _Told(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    detail: str = ""
    error: _Told = msgspec.field(default_factory=_Told)


def lacks_route(answer: Answer, method: str, path: str) -> bool:
    """Whether a worker says that it has no such route: 405, or 404 in the words of Starlette, of
    vLLM or of our workers. A 404 for an unknown model has other words, for any name."""
    if answer.status != 404:
        return answer.status == 405
    try:
        said = msgspec.json.decode(answer.body, type=_Refusal)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    told = said.detail or said.error.message
    return told in (_NOT_FOUND, f"{method} {path}: {_NOT_FOUND}")
