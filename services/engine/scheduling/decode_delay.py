"""How long pictures and prompts may hold up the requests that decode, by how fast runs turn out."""

from __future__ import annotations

import math

from services.engine.scheduling.chunks import Work

_RUN_S = 0.1
_LEAST_TOKENS = 16  # of a prompt in a step that has no time left: it must end some day
_DECODES_KEPT = 0.8  # weight of earlier steps in the time of a step that only decodes


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
