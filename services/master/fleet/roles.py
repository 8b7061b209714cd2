"""Which role each worker serves that may have several: as a master says, or as it says itself."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.errors import InvalidRequest
from protocol.registry import StageRole
from services.master.config import MasterConfig
from services.master.fleet.changelog import Changelog
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance

logger = logging.getLogger(__name__)


@dataclass
class Roles:
    """Workers take every kind of call in any role: a role says which they are sent. So a move
    ends nothing: what is under way goes on, new requests are placed by the new role.

    `moved`: how often, by (model, role before, role after, who said so: load, call, master,
    worker). Times are ms of the caller's monotonic clock.
    """

    config: MasterConfig
    instances: Mapping[str, Instance]
    fleets: Mapping[str, Fleet]
    changelog: Changelog
    moved: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)

    def check(self, instance_id: str, role: StageRole) -> Instance:
        """A worker that may be moved to this role; `InvalidRequest` says why another may not."""
        instance = self.instances.get(instance_id)
        if instance is None:
            raise InvalidRequest(
                f"instance_id: no worker '{instance_id}' is registered",
                param="instance_id", code="unknown_instance",
            )  # fmt: skip
        if role not in instance.info.roles:
            served = ", ".join(instance.info.roles) or instance.info.role
            raise InvalidRequest(
                f"role: {instance.info.url} serves {served}, not {role}; a worker that is to change"
                " its role is started with --role any",
                param="role", code="fixed_role",
            )  # fmt: skip
        return instance

    def move(self, instance: Instance, role: StageRole, now_ms: float, cause: str, by: str) -> bool:
        """The worker is to serve `role`, which it is told with its next answer; False if it does.
        `cause` is for the log."""
        info = instance.info
        if info.role == role:
            return False
        self.fleets[info.model].move(instance, role, now_ms)
        instance.ordered_at = now_ms
        self.changelog.note(info.instance_id)
        self.moved[info.model, info.role, role, by] += 1
        fields = {"url": info.url, "from": info.role, "to": role, "cause": cause}
        logger.info("worker moved", extra={"fields": fields})
        return True

    def heard(self, instance: Instance, role: StageRole | None, now_ms: float) -> None:
        """What the worker says that it serves. Its word counts, unless it may not have heard of a
        move yet: it listens to one master alone, and masters may not know of each other."""
        if role is None or role not in instance.info.roles:
            return
        if role == instance.info.role:
            instance.ordered_at = None
        elif _old(instance.ordered_at, now_ms - self.config.lease * 1e3):
            if instance.ordered_at is not None:
                instance.disobeyed_at = now_ms  # it listens to another master
            self.move(instance, role, now_ms, "its own word", "worker")
            instance.ordered_at = None


def _old(ordered_at: float | None, before: float) -> bool:
    """Whether the worker must have heard of an order; None if there is none."""
    return ordered_at is None or ordered_at < before
