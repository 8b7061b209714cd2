"""What reports say of the time that stages took, for the workers that did them."""

from __future__ import annotations

from protocol.placement import Finished
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.fleet.learned_rates import RateLearner
from services.master.fleet.pool import Charge
from services.master.placement.reservation import Reservation

_SLACK_MS = 1_000.0
_HELD, _ENCODED = 0.5, 0.8  # of an encode's time: less, and there was none; more, and there was


def learn(held: Reservation, report: Finished, now_ms: float) -> None:
    """Of a stage that was done, before what it holds is given back."""
    elapsed_ms = report.elapsed_s * 1e3
    # No stage lasts longer than since its placement: what claims that is not learnt from.
    possible = 0.0 < elapsed_ms <= now_ms - held.placed_at + _SLACK_MS
    if not report.done or not possible:
        return
    if report.stage == "encode":
        names = report.mm_hashes or list(held.encodes)
        charges = [held.encodes[name] for name in names if name in held.encodes]
        _computed(held.fleet, charges, elapsed_ms, now_ms)
        for name in report.mm_hashes:
            _judge(held, name, elapsed_ms, now_ms)
    elif report.stage == "prefill" and (charge := held.computes) is not None:
        _computed(held.fleet, [charge], elapsed_ms, now_ms)
    elif report.stage == "request":
        _decoded(held, report, now_ms)


def _judge(held: Reservation, mm_hash: str, elapsed_ms: float, now_ms: float) -> None:
    """Whether an encoder had the picture that it was thought to hold: encoding takes its time."""
    guess = held.guessed.pop(mm_hash, None)
    # A slot is used again: another worker may have it by now.
    if guess is None or held.fleet.by_slot.get(guess.at.slot) is not guess.at:
        return
    caches = guess.at.caches(held.predicted)
    if caches is None:
        return
    if guess.encode_ms is not None:
        if elapsed_ms < _HELD * guess.encode_ms:
            caches.media.found()
        elif elapsed_ms > _ENCODED * guess.encode_ms:
            caches.media.missed(mm_hash)
    caches.media.use((mm_hash,), now_ms)  # it has it now


def _computed(fleet: Fleet, charges: list[Charge], elapsed_ms: float, now_ms: float) -> None:
    """One call for all of these, to one worker. One that was to encode media too says nothing of
    how long prompts take."""
    if any(charge.encode_ms for charge in charges):
        return
    if len({(id(charge.pool), charge.row) for charge in charges}) != 1 or not charges[0].live:
        return
    at = _at(fleet, charges[0])
    if at.learner is not None:
        at.learner.computed(elapsed_ms, sum(charge.tokens for charge in charges), now_ms)
        _use(at, at.learner)


def _decoded(held: Reservation, report: Finished, now_ms: float) -> None:
    charge, outputs = held.decode, report.output_tokens
    if charge is None or not charge.live or held.decoding_since is None or outputs < 2:
        return
    at = _at(held.fleet, charge)
    spent_ms, since = (report.elapsed_s - report.first_s) * 1e3, held.decoding_since
    if at.learner is None or spent_ms <= 0.0 or now_ms <= since:
        return
    requests = (at.learner.decoding.until(now_ms) - held.decoding_area) / (now_ms - since)
    at.learner.decoded(spent_ms / (outputs - 1), requests, outputs)
    _use(at, at.learner)


def _use(at: Instance, learner: RateLearner) -> None:
    at.pool.learn(at.row, learner.rates())


def decode_begins(held: Reservation, now_ms: float) -> None:
    """Its prompt is computed: from now on it is one of those that decode."""
    charge = held.decode
    if charge is None or not charge.live or held.decoding_since is not None:
        return
    # Engines that are asked only after prefill show it from here on, even if later was foreseen.
    charge.visible_at = min(charge.visible_at, now_ms)
    at = _at(held.fleet, charge)
    if at.learner is not None:
        held.decoding_since = now_ms
        held.decoding_area = at.learner.decoding.change(1, now_ms)


def decode_ends(held: Reservation, now_ms: float) -> None:
    """The request has ended, with any outcome."""
    charge, since = held.decode, held.decoding_since
    held.decoding_since = None
    # Not `live`: a charge that a report has closed as lost still counts among the decodes.
    if charge is None or since is None or charge.pool.occupants[charge.row] != charge.occupant:
        return
    at = _at(held.fleet, charge)
    if at.learner is not None:
        at.learner.decoding.change(-1, now_ms)


def _at(fleet: Fleet, charge: Charge) -> Instance:
    return fleet.by_slot[int(charge.pool.slots[charge.row])]
