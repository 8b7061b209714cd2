"""What a placed request takes up until its stages end."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    settle_ms: float = 0.0  # until a worker that is asked shows it in its reports
    tenant: str | None = None  # whose share it counts against, None if another master has placed it
    # From when on it counts among the requests that decode at its worker
    decoding_since: float | None = None
    # Requests times ms that the worker's decodes had added up to by then; the difference at the
    # end, over the time, is how many decoded beside it
    decoding_area: float = 0.0

    @property
    def computes(self) -> Charge | None:
        """The charge of the worker that computes its prompt; None where nothing is left of that."""
        if self.prefill is None and self.decode is not None and self.decode.tokens:
            return self.decode
        return self.prefill
