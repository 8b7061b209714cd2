"""A relayed request as a master is told of it: made once, as rendering a prompt takes long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from proxy.placement.needs import ModelNames
from proxy.placement.planner import Need


class ServedAs(NamedTuple):
    """What a rendered prompt and its keys owe to the fleet: the name by which the frontend renders
    for the model that is asked for, the revision of its adapter, the names in content keys."""

    name: str | None
    adapter_revision: str
    keyed: ModelNames


@dataclass(frozen=True)
class Description:
    """`need`: of every attempt, but for its id. `names`: of each media item. `exact`: whether these
    are our own content keys. `asked`: the model as the client names it. `served_as`: with what of
    the fleet it was made; it holds as long as that does."""

    need: Need
    names: Sequence[str]
    exact: bool
    asked: str | None
    served_as: ServedAs
