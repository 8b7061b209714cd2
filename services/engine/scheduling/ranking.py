"""Which of the waiting requests an engine computes first."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType

from protocol.errors import ConfigError, InternalError
from protocol.plugins import find_plugin, plugin_names
from protocol.types import GenerateRequest

Ranking = Callable[[GenerateRequest], float]
"""A request's rank: lower ones run first, and are preempted last; of equal ones the older."""


def by_priority(request: GenerateRequest) -> float:
    return request.priority


def by_arrival(request: GenerateRequest) -> float:
    return 0.0


RANKINGS: MappingProxyType[str, Ranking] = MappingProxyType(
    {"fcfs": by_arrival, "priority": by_priority}
)


def check_policy(name: str) -> None:
    """`ConfigError` if there is no ranking of that name."""
    if name in RANKINGS:
        return
    known = [*RANKINGS, *plugin_names("scheduling_policies")]
    if name not in known:
        raise ConfigError(f"--scheduling-policy: '{name}' is not one of {', '.join(known)}")


def ranking(name: str) -> Ranking:
    """The ranking of that name; `ConfigError` if there is none."""
    check_policy(name)
    if name in RANKINGS:
        return RANKINGS[name]
    found = find_plugin("scheduling_policies", name)
    if not callable(found):
        raise ConfigError(f"--scheduling-policy: '{name}' is no function of a request")
    return _contained(name, found)


def _contained(name: str, rank: Callable[[GenerateRequest], object]) -> Ranking:
    """A package's ranking, of which a mistake costs its own request alone."""

    def ranked(request: GenerateRequest) -> float:
        try:
            found = rank(request)
            if isinstance(found, (int, float)) and math.isfinite(found):
                return float(found)
        except Exception as error:
            raise InternalError(f"--scheduling-policy {name} failed: {error}") from error
        raise InternalError(f"--scheduling-policy {name} gave {found!r} for a request's rank")

    return ranked
