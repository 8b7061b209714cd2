"""How long pictures and prompts may hold up the requests that decode."""

from __future__ import annotations

import math

from services.engine.scheduling.chunks import Work
from services.engine.scheduling.run_bound import RunBound

_LEAST_TOKENS = 16  # of a prompt in a step that has no time left: it must end some day
_DECODES_KEPT = 0.8  # weight of earlier steps in the time of a step that only decodes


class DecodeDelay:
    """Shares `bound_s` of every step in which requests decode among pictures and prompts; 0 is no
    bound. What a prompt token takes is learned from the steps themselves.
    """

    def __init__(self, bound_s: float = 0.0, max_tokens: int = 1) -> None:
        self.bound_s = bound_s or math.inf
        self._left_s = math.inf
        self._prompts = RunBound(max_tokens)
        self._decode_s = 0.0  # of a step without prompts
        self._computed_prompts = False  # in the last step

    def begin(self, *, decoding: bool) -> None:
        """A step begins; `decoding` says whether requests wait for its tokens."""
        self._left_s = self.bound_s if decoding else math.inf

    @property
    def for_pictures_s(self) -> float:
        """Half of the time where prompts need the other half."""
        return self._left_s / 2 if self._computed_prompts else self._left_s

    def spent(self, seconds: float) -> None:
        self._left_s -= seconds

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of prompts that the rest of the step has time for; None for no bound."""
        if math.isinf(self._left_s) or not self._prompts.units_per_s:
            return None
        return max(_LEAST_TOKENS, int(self._prompts.room_in(self._left_s)))

    def computed(self, work: Work, seconds: float) -> None:
        """A step has ended that took `seconds`."""
        self._computed_prompts = work.computed > 0
        if work.computed:
            # A decode takes what it takes alone; a guess too high must not make prompts look free.
            decode_s = self._decode_s if work.requests else 0.0
            self._prompts.learn(work.computed, max(seconds - decode_s, seconds / 2))
        elif work.requests:
            kept = _DECODES_KEPT if self._decode_s else 0.0
            self._decode_s = kept * self._decode_s + (1 - kept) * seconds
