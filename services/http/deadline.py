"""Until when a request may take, in all that is done for it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import msgspec

from protocol.errors import DeadlineExceeded
from protocol.types import GenerateRequest


@dataclass(frozen=True)
class Deadline:
    """`at` is of `time.monotonic`, infinite if none is set."""

    at: float = math.inf

    @staticmethod
    def after(seconds: float | None) -> Deadline:
        # `time.monotonic`: a clock that is set does not end requests.
        return Deadline() if seconds is None else Deadline(time.monotonic() + seconds)

    @property
    def left_s(self) -> float | None:
        """None if there is no deadline, not less than 0."""
        return None if self.at == math.inf else max(0.0, self.at - time.monotonic())

    def bounding(self, request: GenerateRequest) -> GenerateRequest:
        """The request with what is left as its deadline; `DeadlineExceeded` if that is nothing."""
        left = self.left_s
        if left == 0.0:
            # Before a worker is asked: it would compute for a client that has given up.
            raise self.exceeded()
        # Seconds that are left, not a time of day: clocks of machines differ.
        return msgspec.structs.replace(request, deadline_s=left)

    @staticmethod
    def exceeded() -> DeadlineExceeded:
        return DeadlineExceeded("the request's deadline has passed")


NEVER = Deadline()
