"""Workers by the stage that they serve."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.types import Role
from proxy.fleet.worker import Instance


@dataclass
class WorkerLists:
    """`encode`, `prefill`, `decode`: the workers that serve these stages."""

    encode: list[Instance] = field(default_factory=list)
    prefill: list[Instance] = field(default_factory=list)
    decode: list[Instance] = field(default_factory=list)

    def of(self, role: Role) -> list[Instance]:
        """The workers of a role."""
        if role == "encode":
            return self.encode
        return self.prefill if role == "prefill" else self.decode

    def all(self) -> list[Instance]:
        return [*self.encode, *self.prefill, *self.decode]

    def computing(self, rendered: str = "") -> list[Instance]:
        """Those that prefill or decode. `rendered`: for the model of this first name alone, of
        several that the proxy renders for."""
        return [
            one for one in (*self.prefill, *self.decode) if not rendered or one.rendered == rendered
        ]

    def find(self, role: Role, url: str) -> Instance | None:
        return next((i for i in self.of(role) if i.url == url), None)

    def move(self, instance: Instance, role: Role) -> None:
        """A worker serves another role from here on; its calls go on."""
        if instance in self.of(instance.role):
            self.of(instance.role).remove(instance)
            self.of(role).append(instance)
        instance.role = role
