"""A step that does not end while the engine's process runs, as one that waits for a GPU that hangs:
the worker says so, its requests go on elsewhere, and it comes back."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import ModelDir
from tests.integration.test_stalled_engine import busy, call_status
from tests.support.clients import all_tokens, all_up, caught
from tests.support.conversations import asking
from tests.support.installed_plugin import describe
from tests.support.stack import idle, proxy, running
from tests.support.waiting import until

CASES = [asking(f"Question {number}?") for number in range(8)]
SHORT = {"max_tokens": 8, "ignore_eos": True}
LONG = {"max_tokens": 200, "ignore_eos": True}
BOUND_S = 90.0
HANGING = '''
import os, time
from pathlib import Path

def first_come(request):
    """An order of requests that takes as long as the file is there."""
    while Path(os.environ["HANGS"]).exists():
        time.sleep(0.05)
    return 0.0
'''


def test_requests_leave_a_step_that_hangs_and_come_back(
    model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hangs is work as any other, so that the bound is what `--engine-step-timeout` 0 makes
    of it: 10 s here, as no step takes 5."""
    (tmp_path / "hanging.py").write_text(HANGING)
    groups = {"triptych.scheduling_policies": {"hanging": "hanging:first_come"}}
    describe(tmp_path, "hanging", groups)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    with running(model_dir("qwen3")) as stack:
        ill = stack.start("services.decode", "--scheduling-policy", "hanging")
        well = stack.start("services.decode")
        for worker in (ill, well):
            worker.wait_ready()
        server = proxy(stack, [], [], [ill, well])
        until(lambda: all_up(server, 2), bound_s=BOUND_S)
        expected = all_tokens(server, CASES, **SHORT)
        long = all_tokens(server, CASES[:4], **LONG)
        with ThreadPoolExecutor(4) as pool:
            streams = caught(pool, server, CASES[:4], lambda: busy(ill), **LONG)
            (tmp_path / "hangs").touch()
            assert all_tokens(server, CASES, **SHORT) == expected
            assert [one.result(BOUND_S) for one in streams] == long
        until(lambda: call_status(f"{ill.url}/health") == 503, bound_s=BOUND_S)
        assert any("a step does not end" in line for line in ill.log)
        assert call_status(f"{well.url}/health") == 200
        (tmp_path / "hangs").unlink()
        until(lambda: call_status(f"{ill.url}/ready") == 200, bound_s=BOUND_S)
        until(lambda: all_up(server, 2), bound_s=BOUND_S)
        assert all_tokens(ill, CASES, **SHORT) == expected
        for worker in (ill, well):
            idle(worker)
