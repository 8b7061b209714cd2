"""Which master each worker talks to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Home:
    """Which master speaks for a worker, and when it last did (s)."""

    master: str
    heard: float


@dataclass
class Homes:
    """Of a known worker, by its id: in `elsewhere` the other master that it talks to, or in `here`
    when it last talked to this one (s). Heard within `fresh_s` here, its own word counts for more
    than another master's: what others say may be older."""

    fresh_s: float
    elsewhere: dict[str, Home] = field(default_factory=dict)
    here: dict[str, float] = field(default_factory=dict)

    def speaks_here(self, instance_id: str, now: float) -> None:
        self.here[instance_id] = now
        self.elsewhere.pop(instance_id, None)

    def speaks_elsewhere(self, instance_id: str, master: str, now: float) -> None:
        self.here.pop(instance_id, None)
        self.elsewhere[instance_id] = Home(master, now)

    def forget(self, instance_id: str) -> bool:
        """The worker has left; whether it spoke to this master."""
        self.elsewhere.pop(instance_id, None)
        return self.here.pop(instance_id, None) is not None

    def speaks_to_us(self, instance_id: str, now: float) -> bool:
        """Whether a worker was lately heard of without other masters."""
        heard = self.here.get(instance_id)
        return heard is not None and now - heard < self.fresh_s
