"""How much one run of a model takes, as its speed turns out."""

from __future__ import annotations

_RUN_S = 0.1


class RunBound:
    """At most `most` units (patches of pictures, tokens of prompts), and no more than should take
    the time that a run may take."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.units_per_s = 0.0  # of the runs so far, 0 before the first

    @property
    def room(self) -> float:
        """Units of a run that holds its first picture up, by all others, for 0.1 s at most; a run
        takes that picture however large it is."""
        return self.room_in(_RUN_S)

    def room_in(self, seconds: float) -> float:
        return min(self.most, self.units_per_s * seconds)

    def learn(self, units: int, seconds: float) -> None:
        """A small run says little of how fast a large one is: the rate rises at once and falls
        slowly."""
        rate = units / max(seconds, 1e-6)
        self.units_per_s = max((self.units_per_s + rate) / 2, rate)
