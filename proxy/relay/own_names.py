"""Names that the proxy itself gives to the model that its workers serve."""

from __future__ import annotations

from proxy.config import SEVERAL
from proxy.fleet.fleet import Fleet
from proxy.relay.bodies import RequestBody


class OwnNames:
    """`names`: --served-model-name."""

    def __init__(self, fleet: Fleet, names: str) -> None:
        self._fleet = fleet
        parted = names.replace(SEVERAL, ",").split(",")
        self._names = frozenset(name.strip() for name in parted if name.strip())

    def rename(self, request: RequestBody) -> None:
        """A name of the proxy's own stands for the model that all workers serve."""
        if self._names and request.model in self._names:
            workers = [one for one in self._fleet.all() if one.model]
            models = {one.model for one in workers}
            known = any(request.model in one.models for one in workers)
            if len(models) == 1 and not known:
                request.rename_model(models.pop())
