"""KV below a worker's pool counts for the time that it saves there."""

import msgspec
import pytest

from protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from services.master.api.service import MasterService
from services.master.config import MasterConfig
from services.master.master import Master
from tests.support.master_fleets import LOAD, PROMPT, RATES, add, asking, hear, place, prefill_of
from tests.support.master_fleets import master as fleet_of


def tiered(**rates: float) -> Master:
    """p0 and p1 prefill a token in 1 ms; p0 gets KV back from below its pool at these rates."""
    made = fleet_of("decode")
    for name, given in (("p0", msgspec.structs.replace(RATES, **rates)), ("p1", RATES)):
        add(made, name, "prefill", load=msgspec.structs.replace(LOAD, rates=given))
    return made


def below(medium: str, blocks: int, first: int = 0) -> BlockStored:
    return BlockStored(list(PROMPT[first:blocks]), medium=medium)


def test_a_prompt_goes_where_it_is_back_soonest() -> None:
    made = tiered(host_ms_per_token=0.1, disk_ms_per_token=0.4)
    hear(made, "p1", BlockStored(list(PROMPT[:4])))
    hear(made, "p0", below("CPU", 6))
    placement = place(made, asking("a"))
    assert prefill_of(placement) == "p0"
    assert placement.ttft_ms == pytest.approx(160 - 6 * 16 * 0.9)
    assert placement.hit_tokens == 0, "it is not in the pool yet"


def test_disk_continues_what_host_memory_and_the_pool_begin() -> None:
    made = tiered(host_ms_per_token=0.1, disk_ms_per_token=0.4)
    hear(made, "p0", BlockStored(list(PROMPT[:2])), below("CPU", 5), below("DISK", 10, first=4))
    placement = place(made, asking("a"))
    assert placement.hit_tokens == 32
    saved = 2 * 16 + 3 * 16 * 0.9 + (159 - 5 * 16) * 0.6
    assert placement.ttft_ms == pytest.approx(160 - saved)


def test_what_takes_longer_to_fetch_than_to_compute_counts_for_nothing() -> None:
    made = tiered(disk_ms_per_token=2.0)
    hear(made, "p0", below("DISK", 10))
    hear(made, "p1", BlockStored(list(PROMPT[:1])))
    assert prefill_of(place(made, asking("a"))) == "p1"


@pytest.mark.parametrize("medium", ["CPU", "DISK"])
def test_a_tier_that_is_not_measured_yet_saves_nothing(medium: str) -> None:
    made = tiered()
    hear(made, "p0", below(medium, 10))
    assert place(made, asking("a")).ttft_ms == pytest.approx(160)


@pytest.mark.parametrize("medium", ["CPU", "DISK"])
def test_what_a_tier_loses_is_forgotten(medium: str) -> None:
    made = tiered(host_ms_per_token=0.1, disk_ms_per_token=0.1)
    hear(made, "p0", below(medium, 10))
    fleet = made.registry.fleet("m")
    index = {"CPU": fleet.exact.host, "DISK": fleet.exact.disk}[medium]
    assert len(index) == 10
    hear(made, "p0", BlockRemoved(list(PROMPT[4:]), medium="GPU"))
    assert len(index) == 10, "the pool's blocks are others"
    hear(made, "p0", BlockRemoved(list(PROMPT[4:]), medium=medium))
    assert place(made, asking("a")).ttft_ms == pytest.approx(160 - 4 * 16 * 0.9)
    hear(made, "p0", AllBlocksCleared())
    assert len(index) == 0


async def test_what_is_known_of_tiers_is_shown_and_bounded() -> None:
    service = MasterService(MasterConfig(max_index_entries=4))
    add(service.master, "p0", "prefill", events=[])
    hear(service.master, "p0", below("CPU", 3), below("DISK", 10))
    shown = service.metrics.render().decode()
    for kind, count in (("host", 3), ("disk", 4), ("refused", 6)):
        assert f'index_entries{{kind="{kind}",model="m"}} {count}.0' in shown


def test_a_worker_that_leaves_takes_its_tiers_along() -> None:
    made = tiered()
    hear(made, "p0", below("CPU", 10), below("DISK", 10))
    made.registry.expire(1e12)
    index = made.registry.fleet("m").exact
    assert (len(index.host), len(index.disk)) == (0, 0)
