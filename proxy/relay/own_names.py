"""Names that the proxy itself gives to the model that its workers serve."""

from __future__ import annotations

from collections.abc import Iterable

from proxy.fleet.fleet import Fleet
from proxy.relay.bodies import RequestBody


class OwnNames:
    """`names`: of --served-model-name."""

    def __init__(self, fleet: Fleet, names: Iterable[str]) -> None:
        self._fleet = fleet
        self._names = frozenset(names)

    def rename(self, request: RequestBody) -> None:
        """A name of the proxy's own stands for the model that all workers serve."""
        if self._names and request.model in self._names:
            workers = [one for one in self._fleet.all() if one.model]
            models = {one.model for one in workers}
            known = any(request.model in one.models for one in workers)
            if len(models) == 1 and not known:
                request.rename_model(models.pop())
