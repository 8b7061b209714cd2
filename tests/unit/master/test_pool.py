"""How long a worker is thought to be busy: charges, reports, and what ends."""

import msgspec
import pytest

from protocol.registry import InstanceInfo, Load
from services.master.config import MasterConfig
from services.master.fleet.pool import Charge, Pool
from tests.support.master_fleets import LOAD, RATES


def pool(kind: str = "prefill") -> Pool:
    made = Pool(kind, MasterConfig())
    made.add(InstanceInfo("w", "prefill", "http://w:1", "m", load=LOAD), 0, 0.0)
    return made


def charged(made: Pool, work_ms: float, visible_at: float = 100.0) -> Charge:
    charge = Charge(made, 0, visible_at, work_ms, tokens=work_ms)
    made.charge(charge, 0.0)
    return charge


def report(made: Pool, now_ms: float, queued: int, running: int, tokens: int) -> float:
    """ms that the worker is busy from now on."""
    load = Load(queued=queued, running=running, queued_tokens=tokens, rates=RATES)
    made.report(0, load, now_ms)
    return float(made.busy_until[0]) - now_ms


def test_a_report_of_whole_prompts_does_not_undo_what_caches_save() -> None:
    """Two requests of 1000 tokens wait, of which 900 are cached: 200 ms, not 2000."""
    made = pool()
    charged(made, 100.0)
    charged(made, 100.0)
    assert report(made, 150.0, 2, 0, 2000) == pytest.approx(200.0)


def test_nor_do_tokens_to_be_computed_count_what_caches_save() -> None:
    """Four prompts of 1000 tokens wait. Two were placed here and lack 100 tokens each, the other
    two were placed elsewhere and count in full."""
    made = pool()
    charged(made, 100.0)
    charge = charged(made, 100.0)
    report(made, 150.0, 4, 0, 4000)
    assert made.queued_tokens[0] == pytest.approx(2000 + 200)
    made.release(charge, 160.0, done=True)
    assert made.queued_tokens[0] == pytest.approx(2000 + 100)
    report(made, 170.0, 1, 0, 60)
    assert made.queued_tokens[0] == pytest.approx(60), "prompts are partly computed by then"


def test_a_report_of_less_than_was_charged_counts() -> None:
    made = pool()
    charged(made, 100.0)
    charged(made, 100.0)
    assert report(made, 150.0, 1, 1, 120) == pytest.approx(120.0)


def test_work_that_was_placed_elsewhere_counts_by_its_share_of_the_report() -> None:
    """Of four requests with 400 ms of work one was placed here and is known to take 10 ms."""
    made = pool()
    charged(made, 10.0)
    assert report(made, 150.0, 4, 0, 400) == pytest.approx(300.0 + 10.0)


def test_what_a_report_cannot_show_yet_is_added_to_it() -> None:
    made = pool()
    charged(made, 100.0)
    charged(made, 70.0, visible_at=900.0)
    assert report(made, 150.0, 1, 0, 1000) == pytest.approx(100.0 + 70.0)


def test_the_end_of_a_request_corrects_the_queue_behind_it() -> None:
    """The first took 50 ms where 100 were predicted: the second ends 50 ms sooner."""
    made = pool()
    first, second = charged(made, 100.0), charged(made, 30.0)
    made.release(first, 50.0, done=True)
    assert float(made.busy_until[0]) == pytest.approx(80.0)
    made.release(second, 90.0, done=True)
    assert float(made.busy_until[0]) == pytest.approx(90.0)


def test_the_end_of_a_request_keeps_what_others_have_placed() -> None:
    made = pool()
    first = charged(made, 100.0)
    charged(made, 20.0)
    report(made, 150.0, 4, 0, 400)
    made.release(first, 200.0, done=True)
    assert float(made.busy_until[0]) == pytest.approx(150.0 + 200.0 + 20.0)


def test_a_worker_that_claims_to_receive_nothing_has_a_price() -> None:
    made = Pool("decode", MasterConfig())
    load = Load(rates=msgspec.structs.replace(RATES, transfer_bytes_per_ms=1e-320))
    made.add(
        InstanceInfo("w", "decode", "http://w:1", "m", load=load, kv_bytes_per_token=1), 0, 0.0
    )
    assert float(made.kv_ms[0]) == 1.0


def requests(made: Pool) -> float:
    return float(made.requests[0])


def test_a_request_that_ends_before_it_is_told_of_is_taken_off_once() -> None:
    made = pool("decode")
    charges = [charged(made, 0.0) for _ in range(3)]
    report(made, 150.0, 0, 2, 0)
    assert requests(made) == 3
    made.release(charges[0], 160.0, done=True)
    assert requests(made) == 2


def test_a_request_that_comes_late_counts_on_and_one_that_a_report_shows_counts_once() -> None:
    made = pool("decode")
    charged(made, 0.0)
    charged(made, 0.0, visible_at=900.0)
    for here, counted in ((0, 2), (1, 2), (2, 2), (5, 5)):
        report(made, 150.0, 0, here, 0)
        assert requests(made) == counted


def test_requests_whose_end_no_proxy_tells_are_given_up_after_a_while() -> None:
    made = pool("decode")
    first, second = charged(made, 0.0), charged(made, 0.0)
    for now_ms in (1000.0, 3000.0, 6000.0):
        report(made, now_ms, 0, 1, 0)
        assert requests(made) == 2
    report(made, 6001.0, 0, 1, 0)
    assert requests(made) == 1
    made.release(first, 6002.0, done=True)
    assert requests(made) == 1, "of the two the older one"
    made.release(second, 6003.0, done=True)
    assert requests(made) == 0


def test_a_worker_that_was_short_for_a_moment_is_waited_for_again() -> None:
    made = pool("decode")
    charged(made, 0.0)
    for now_ms, here in ((1000.0, 0), (5000.0, 1), (6100.0, 0), (11000.0, 0)):
        report(made, now_ms, 0, here, 0)
        assert requests(made) == 1
    report(made, 11200.0, 0, 0, 0)
    assert requests(made) == 0
