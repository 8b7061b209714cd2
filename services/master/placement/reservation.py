"""What a placed request takes up until its stages end, who is told of it, and what is counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from protocol.placement import Finished, ScheduleRequest
from protocol.registry import InstanceInfo
from services.master.fleet.changelog import FleetListener
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.fleet.pool import Charge
from services.master.index.expected_prefixes import ExpectedPrefix


@dataclass(frozen=True, slots=True)
class GuessedItem:
    """A picture that an encoder is thought to hold and was asked for. `encode_ms`: how long the
    answer takes if it does not hold it; None if the encoder has other work, so that it cannot be
    told.
    """

    at: Instance
    encode_ms: float | None


@dataclass(eq=False, slots=True)
class Reservation:
    """Of one request. Times are ms of the caller's monotonic clock."""

    fleet: Fleet  # of its model
    expires_at: float  # when it is given back though the end of the request was not reported
    # The charge of each picture that is encoded for it, by media hash
    encodes: dict[str, Charge] = field(default_factory=dict)
    # Pictures that it takes from encoders which are thought to hold them, by media hash
    guessed: dict[str, GuessedItem] = field(default_factory=dict)
    # `prefill`, `decode`: the charges of these stages; a worker that does both has one, for decode
    prefill: Charge | None = None
    decode: Charge | None = None
    expected: ExpectedPrefix | None = None  # the prefix that its prefill will leave there
    predicted: bool = False  # its keys are those of a proxy that has no model
    placed_at: float = 0.0  # 0 if another master has placed it
    tenant: str | None = None  # whose share it counts against, None if another master has placed it
    # From when on it counts among the requests that decode at its worker
    decoding_since: float | None = None
    # Requests times ms that the worker's decodes had added up to by then; the difference at the
    # end, over the time, is how many decoded beside it
    decoding_area: float = 0.0


class MasterListener(FleetListener):
    """Of requests too. Does nothing; a subclass overrides what it wants to be told of."""

    def placed(self, request: ScheduleRequest, held: Reservation, now_ms: float) -> None:
        """A request is placed, and holds so much."""

    def over(self, report: Finished) -> None:
        """A stage of a request has ended."""

    def leads(self) -> bool:
        """Whether this master, of those that share the fleet, decides which worker serves which
        role."""
        return True

    def moved(self, info: InstanceInfo, now_ms: float) -> None:
        """A worker is to serve another role, by a decision made here."""

    def finished_elsewhere(self, report: Finished, now_ms: float) -> list[str]:
        """A report of a request that was not placed here; the workers that have done their part in
        it."""
        return []


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
