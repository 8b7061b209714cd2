"""What a master has placed and refused so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from protocol.placement import Placement, ScheduleRequest


@dataclass
class Totals:
    """Counts since the start."""

    placed: int = 0  # requests, each time they were
    hit_tokens: int = 0  # of their prompts, cached where they were placed
    prompt_tokens: int = 0  # of their prompts, all
    given_up: int = 0  # requests whose end was not reported
    lapsed: int = 0  # workers whose lease has
    # Pictures, by where their embeddings come from
    items: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # requests, by error code

    def count(self, request: ScheduleRequest, placement: Placement) -> None:
        """A request was placed."""
        self.placed += 1
        self.hit_tokens += placement.hit_tokens
        self.prompt_tokens += request.prompt_tokens
        for item in placement.encoders:
            self.items[item.state] += 1
