"""How many patches one run of the vision model takes."""

from __future__ import annotations

_RUN_S = 0.1


class RunBound:
    """At most `max_patches`, and no more than it should take `_RUN_S` for, as the first picture of
    a run is held up by all others."""

    def __init__(self, max_patches: int) -> None:
        self.max_patches = max_patches
        self.patches_per_s = 0.0  # of the runs so far, 0 before the first

    @property
    def room(self) -> float:
        """Patches; a run takes its first picture however large that is."""
        return min(self.max_patches, self.patches_per_s * _RUN_S)

    def learn(self, patches: int, seconds: float) -> None:
        """A small run says little of how fast a large one is: the rate rises at once and falls
        slowly."""
        rate = patches / max(seconds, 1e-6)
        self.patches_per_s = max((self.patches_per_s + rate) / 2, rate)
