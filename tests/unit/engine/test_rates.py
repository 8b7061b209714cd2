"""What an engine measures of itself: the right constants from noisy steps, and new ones soon."""

import numpy as np
import pytest

from connectors.meter import TransferStats
from services.engine.scheduling.chunks import Work
from services.engine.scheduling.rates import LinearFit, RateMeter

PREFILL = (5.0, 0.1, 0.002)  # base, computed, reused
DECODE = (10.0, 0.5, 0.0004)  # base, request, context token


def work(rng: np.random.Generator) -> Work:
    kind = rng.integers(3)
    computed = int(rng.integers(1, 2000)) if kind != 1 else 0
    reused = int(rng.integers(0, 4000)) if kind != 1 else 0
    requests = int(rng.integers(1, 64)) if kind != 0 else 0
    return Work(computed, reused, requests, requests * int(rng.integers(10, 2000)))


def ms(done: Work, slower: float = 1.0) -> float:
    total = 0.0
    if done.computed:
        total += PREFILL[0] + PREFILL[1] * done.computed + PREFILL[2] * done.reused
    if done.requests:
        total += DECODE[0] + DECODE[1] * done.requests + DECODE[2] * done.context
    return total * slower


def test_the_constants_of_mixed_steps_are_found() -> None:
    rng, meter = np.random.default_rng(0), RateMeter(max_age_s=0.0)
    for _ in range(1500):
        done = work(rng)
        meter.stepped(done, ms(done) * rng.uniform(0.9, 1.1) / 1e3)
    rates = meter.rates()
    assert rates.prefill_ms_per_token == pytest.approx(PREFILL[1], rel=0.05)
    assert rates.prefill_ms_per_cached_token == pytest.approx(PREFILL[2], rel=0.5)
    assert rates.decode_ms_per_request == pytest.approx(DECODE[1], rel=0.2)
    assert rates.decode_ms_per_context_token == pytest.approx(DECODE[2], rel=0.1)
    assert rates.decode_base_ms == pytest.approx(DECODE[0], rel=0.5)
    assert (rates.encode_ms_per_token, rates.transfer_bytes_per_ms) == (0.0, 0.0)


def test_a_worker_that_became_slower_is_measured_anew() -> None:
    rng, meter = np.random.default_rng(1), RateMeter(max_age_s=0.0)
    for number in range(6000):
        done = work(rng)
        meter.stepped(done, ms(done, 1.0 if number < 1000 else 3.0) / 1e3)
    assert meter.rates().prefill_ms_per_token == pytest.approx(3 * PREFILL[1], rel=0.1)


def test_what_always_comes_alike_is_priced_as_a_whole_and_never_below_zero() -> None:
    """A worker that only ever runs one request at one length cannot tell its constants apart."""
    meter = RateMeter(max_age_s=0.0)
    for number in range(200):
        meter.stepped(Work(requests=1, context=100 + number % 3), 0.020)
    rates = meter.rates()
    assert rates.decode_base_ms == pytest.approx(20.0, rel=0.05), "not by the context's length"
    falling = LinearFit((1, 0), 100)
    for x in range(1, 50):
        falling.add((1.0, x), 100.0 - x)
    assert (falling.solve() >= 0.0).all()


def test_an_unmeasured_worker_says_so() -> None:
    meter = RateMeter(max_age_s=0.0)
    assert set(vars_of(meter)) == {0.0}
    for _ in range(2):
        meter.encoded(100, 0.5)
    assert set(vars_of(meter)) == {0.0}, "the first runs are of a cold machine"
    for tokens in (64, 128, 256, 64, 512, 300):
        meter.encoded(tokens, (3.0 + 0.25 * tokens) / 1e3)
    rates = meter.rates()
    assert rates.encode_base_ms + 200 * rates.encode_ms_per_token == pytest.approx(53.0, rel=0.1)


def vars_of(meter: RateMeter) -> list[float]:
    rates = meter.rates()
    return [getattr(rates, name) for name in rates.__struct_fields__]


def test_transfers_are_priced_by_the_byte_apart_from_their_latency() -> None:
    """3 ms for each transfer and 4000 bytes in a ms; then the link becomes ten times slower."""
    rng, meter = np.random.default_rng(2), RateMeter(max_age_s=0.0)
    kv, ec = TransferStats("kv", "shm"), TransferStats("ec", "shm")
    for number in range(300):
        slower = 1.0 if number < 100 else 10.0
        for one in (kv, ec):
            count, nbytes = int(rng.integers(0, 5)), int(rng.integers(1, 100_000))
            if count:
                one.transfers, one.bytes = one.transfers + count, one.bytes + count * nbytes
                one.copy_seconds += (3.0 * count + slower * count * nbytes / 4000.0) / 1e3
        one.seconds += 100.0
        meter.transferred([kv, ec])
        meter.transferred([kv, ec])
        if number == 99:
            assert meter.rates().transfer_bytes_per_ms == pytest.approx(4000.0, rel=0.05)
    assert meter.rates().transfer_bytes_per_ms == pytest.approx(400.0, rel=0.05)
