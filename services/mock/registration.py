"""Mock workers as members of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.fleet_key import NO_KEY, FleetKey
from protocol.registry import Heartbeat, InstanceInfo, StageRole
from services.engine.reports import load_of
from services.membership import registration
from services.membership.registration import Changes
from services.mock.instance import Instance


class _Member:
    failed = False  # an engine without a process of its own cannot end alone

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    async def info(self) -> InstanceInfo:
        return self._instance.info()

    @property
    def adapters(self) -> Mapping[str, str]:
        return {}

    async def heartbeat(self) -> Heartbeat:
        settings, engine = self._instance.settings, self._instance.engine
        return Heartbeat(
            settings.instance_id, settings.generation, load_of(engine), self._instance.leaving,
            self._instance.drained_by_master and not self._instance.life.draining,
            role=self._instance.stage,
        )  # fmt: skip

    def drain(self) -> None:
        if not self._instance.draining:
            self._instance.draining = self._instance.drained_by_master = True

    def resume(self) -> None:
        if self._instance.drained_by_master:
            self._instance.draining = self._instance.drained_by_master = False

    def serve(self, role: StageRole) -> None:
        self._instance.serve(role)


class Registration(registration.Registration):
    """Keeps the workers of this process registered with every master."""

    def __init__(
        self,
        instances: Sequence[Instance],
        masters: Sequence[str],
        interval_s: float,
        changes: Changes,
        key: FleetKey = NO_KEY,
    ) -> None:
        members = [_Member(instance) for instance in instances]
        super().__init__(members, masters, interval_s, changes, key)
