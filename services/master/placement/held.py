"""What a placed request holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.master.fleet.fleet import Fleet
from services.master.fleet.pool import Charge
from services.master.index.expected_prefixes import Expected


@dataclass(eq=False, slots=True)
class Held:
    """Charges of one request: one for each picture it has encoded, for prefill, for decode.
    `predicted`: its keys are those of a proxy that has no model.
    `decoding_since` its decode counts among those at its worker, which by then had added up to
    `decoding_area` requests times ms."""

    fleet: Fleet
    expires_at: float
    encodes: dict[str, Charge] = field(default_factory=dict)
    prefill: Charge | None = None
    decode: Charge | None = None
    expected: Expected | None = None
    predicted: bool = False
    placed_at: float = 0.0
    decoding_since: float | None = None
    decoding_area: float = 0.0
