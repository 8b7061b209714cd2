"""Which worker changes its role by the load, and that none does under a steady one."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from protocol.registry import Heartbeat, Load, Rates
from services.master.listener import MasterListener
from services.master.master import Master
from tests.support.master_fleets import add, asking, master, picture, place

ROLES = ["decode", "prefill", "encode"]
RATES = Rates(encode_ms_per_token=1.0, prefill_ms_per_token=1.0, decode_base_ms=10.0)
BUSY = {"encode": Load(queued=4, queued_tokens=4000, rates=RATES),
        "prefill": Load(queued=4, queued_tokens=4000, rates=RATES),
        "decode": Load(running=10, free_blocks=500, total_blocks=1000, rates=RATES)}  # fmt: skip
IDLE = Load(free_blocks=1000, total_blocks=1000, rates=RATES)
Loads = Callable[[str, float], Load]


def elastic(count: int, **config: Any) -> Master:
    """Workers as they start: all of them decode."""
    made = master(**config)
    for number in range(count):
        join(made, f"a{number}")
    return made


def join(made: Master, name: str) -> None:
    add(made, name, "decode", roles=ROLES, encodes=True, max_running=10)


def split(made: Master) -> dict[str, int]:
    """Workers by role."""
    found: dict[str, int] = {}
    for instance in made.registry.instances.values():
        found[instance.info.role] = found.get(instance.info.role, 0) + 1
    return found


def moves(made: Master) -> int:
    return sum(made.registry.roles.moved.values())


def run(made: Master, start: float, seconds: float, load: Loads = lambda role, now: IDLE) -> None:
    """Each worker beats twice a second with the load that its role has then."""
    for step in range(int(seconds * 10)):
        now = start + step / 10
        if step % 5 == 0:
            for name, instance in made.registry.instances.items():
                beat = Heartbeat(name, load=load(instance.info.role, now), role=instance.info.stage)
                made.heartbeat(beat, now)
        made.expire(now)


def busy_in(role: str) -> Loads:
    return lambda one, now: BUSY[role] if one == role else IDLE


def pictures_are_seen(made: Master, now: float) -> None:
    place(made, asking("seen", items=[picture("p")]), now)


def test_a_fleet_that_starts_is_divided_and_gets_an_encoder_once_there_are_pictures() -> None:
    made = elastic(4)
    run(made, 0.0, 5.0)
    assert split(made) == {"decode": 3, "prefill": 1}
    pictures_are_seen(made, 5.0)
    run(made, 5.0, 5.0)
    assert split(made) == {"decode": 2, "prefill": 1, "encode": 1}
    run(made, 10.0, 100.0)
    assert (split(made)["encode"], moves(made)) == (1, 2)


@pytest.mark.parametrize(("count", "expected"), [
    (1, {"decode": 1}),
    (2, {"decode": 1, "prefill": 1}),
    (3, {"decode": 1, "prefill": 1, "encode": 1}),
])  # fmt: skip
def test_no_role_gives_its_last_worker_away(count: int, expected: dict[str, int]) -> None:
    made = elastic(count)
    pictures_are_seen(made, 0.0)
    run(made, 0.0, 10.0)
    run(made, 10.0, 80.0, busy_in("decode"))
    assert split(made) == expected


def test_the_role_with_much_work_gets_workers_and_gives_them_back_when_that_changes() -> None:
    made = elastic(6, elastic_dwell=5.0)
    pictures_are_seen(made, 0.0)
    run(made, 0.0, 120.0, busy_in("encode"))
    assert split(made) == {"encode": 4, "prefill": 1, "decode": 1}
    pictures_are_seen(made, 120.0)
    run(made, 120.0, 120.0, busy_in("decode"))
    assert split(made) == {"encode": 1, "prefill": 1, "decode": 4}


@pytest.mark.parametrize(("running", "moved"), [(8, 0), (4, 1)])
def test_no_role_gives_what_it_needs_to_one_with_a_long_queue(running: int, moved: int) -> None:
    """Two decode workers of 10 places each: 16 requests are more than one could serve."""

    def load(role: str, now: float) -> Load:
        if role == "prefill":
            queued = 100 if now > 60.0 else 1
            return Load(queued=queued, queued_tokens=1000 * queued, rates=RATES)
        rates = Rates(decode_base_ms=10.0, decode_ms_per_request=1e-3)
        return Load(running=running, free_blocks=1000, total_blocks=1000, rates=rates)

    made = elastic(8, elastic_dwell=0.0)
    run(made, 0.0, 5.0)
    for number in range(1, 6):
        made.move(f"a{number}", "prefill", 5.0)
    assert split(made) == {"prefill": 6, "decode": 2}
    run(made, 5.0, 100.0, load)
    assert split(made) == {"prefill": 6 + moved, "decode": 2 - moved}


def test_moves_keep_their_distance_and_workers_stay_for_a_while() -> None:
    made = elastic(6, elastic_dwell=40.0, elastic_gap=15.0)
    pictures_are_seen(made, 0.0)
    run(made, 0.0, 5.0)
    assert moves(made) == 2, "roles that had none"
    run(made, 5.0, 35.0, busy_in("encode"))
    assert moves(made) == 2, "all have just begun"
    run(made, 40.0, 14.0, busy_in("encode"))
    assert moves(made) == 3
    run(made, 54.0, 16.0, busy_in("encode"))
    assert moves(made) == 4


def test_no_worker_moves_under_a_steady_load_however_high() -> None:
    """Noise about any division of work among the roles: after the first moves there are none."""
    rng = random.Random(5)
    for total in (0.5, 0.9, 1.3, 3.0):
        made = elastic(8, elastic_dwell=0.0, elastic_gap=1.0)
        pictures_are_seen(made, 0.0)
        shares = {role: rng.random() for role in ROLES}
        scale = total * 8 / sum(shares.values())

        def load(role: str, now: float, made: Master = made, shares: Any = shares,
                 scale: float = scale) -> Load:  # fmt: skip
            workers = shares[role] * scale * rng.uniform(0.8, 1.2) / split(made)[role]
            if role == "decode":
                return Load(running=round(7 * workers), free_blocks=1000, total_blocks=1000,
                            rates=RATES)  # fmt: skip
            return Load(queued=2, queued_tokens=int(2000 * workers), rates=RATES)

        run(made, 0.0, 60.0, load)
        settled = moves(made)
        made.registry.fleets["m"].media_at = 60e3
        run(made, 60.0, 120.0, load)
        assert moves(made) - settled <= 1, (total, shares, split(made))


def test_a_role_whose_only_worker_drains_gets_another_at_once() -> None:
    made = elastic(3)
    run(made, 0.0, 5.0)
    (prefill,) = (i for i in made.registry.instances.values() if i.info.role == "prefill")
    prefill.drained = True
    prefill.update_penalty(5e3)
    run(made, 5.0, 3.0)
    assert [i.info.role for i in made.registry.instances.values()].count("prefill") == 2


def test_a_role_whose_workers_fail_one_after_the_other_does_not_take_all() -> None:
    made = elastic(6, elastic_gap=5.0)
    run(made, 0.0, 5.0)
    for step in range(20):
        now = 5.0 + step / 2
        for instance in made.registry.instances.values():
            if instance.info.role == "prefill":
                instance.drained = True
                instance.update_penalty(now * 1e3)
        run(made, now, 0.5)
    assert moves(made) == 1 + 2, "one each 5 s"


def test_a_worker_that_keeps_its_role_is_not_asked_again_and_again() -> None:
    """It listens to another master."""
    made = elastic(2, lease=5.0)
    for step in range(1200):
        for name in made.registry.instances:
            made.heartbeat(Heartbeat(name, load=IDLE, role="decode"), step / 10)
        made.expire(step / 10)
    assert moves(made) <= 4, "there and back, of each"


def test_workers_that_do_it_all_leave_no_role_wanting() -> None:
    made = elastic(2)
    add(made, "all", "pdfusion")
    run(made, 0.0, 20.0)
    assert split(made) == {"decode": 2, "pdfusion": 1}


def test_workers_with_one_role_stay_and_count() -> None:
    made = elastic(2)
    add(made, "p", "prefill")
    add(made, "e", "encode")
    pictures_are_seen(made, 0.0)
    run(made, 0.0, 10.0)
    assert split(made) == {"decode": 2, "prefill": 1, "encode": 1}
    assert not moves(made)


def test_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    made = elastic(2)
    with caplog.at_level("INFO"):
        run(made, 0.0, 5.0)
    (fields,) = (r.fields for r in caplog.records if r.message == "worker moved")  # type: ignore[attr-defined]
    assert (fields["from"], fields["to"]) == ("decode", "prefill")
    assert fields["cause"] == "prefill wanted 1, had 0; decode wanted 1, had 2"


def test_a_master_that_does_not_lead_and_one_told_not_to_move_no_worker() -> None:
    class Second(MasterListener):
        def leads(self) -> bool:
            return False

    made = master(listener=Second())
    off = elastic(4, elastic=False)
    for number in range(4):
        join(made, f"a{number}")
    for one in (made, off):
        run(one, 0.0, 20.0)
        assert split(one) == {"decode": 4}
