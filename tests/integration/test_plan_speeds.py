"""The planner asks a running fleet how fast it is."""

from pathlib import Path

import pytest

from benchmarks.plan.measured import fleet_profile
from protocol.fleet_key import FleetKey
from tests.support.stack import call, running
from tests.support.waiting import until

KEY = "a-key-of-the-fleet-that-is-long-enough"
PATCHES_PER_TOKEN = 4


def registered(url: str) -> int:
    return len(call(f"{url}/workers", headers=dict(FleetKey(KEY).headers))[1].get("workers", []))


def test_the_profile_of_a_fleet_is_what_its_workers_say() -> None:
    with running(Path("a-model")) as stack:
        master = stack.start_plain("services.master", "--fleet-key", KEY)
        url = master.wait_ready()
        for role in ("encode", "prefill", "decode"):
            flags = [
                "--role", role, "--master-url", url, "--fleet-key", KEY, "--block-size", "64",
                "--num-gpu-blocks-override", "100", "--prefill-token-ms", "0.3",
                "--encode-patch-ms", "0.1", "--decode-base-ms", "12", "--max-num-seqs", "17",
            ]  # fmt: skip
            stack.start("services.mock", *flags).wait_ready()
        with pytest.raises(ValueError, match="cannot be asked: HTTP Error 401"):
            fleet_profile(url, FleetKey())
        until(lambda: registered(url) == 3)
        found = fleet_profile(url, FleetKey(KEY))
    assert found.timing.prefill_token_ms == pytest.approx(0.3)
    assert found.timing.encode_token_ms == pytest.approx(0.1 * PATCHES_PER_TOKEN)
    assert found.timing.decode_base_ms == pytest.approx(12.0)
    assert (found.block_size, found.decode_blocks, found.max_running) == (64, 100, 17)
