"""Traces of a worker's steps, asked for at the proxy as vLLM's example has it."""

import json
from pathlib import Path
from typing import Any

from tests.conftest import ModelDir
from tests.integration.test_stalled_engine import call_status, frozen
from tests.support.stack import call, proxy, running
from tests.support.waiting import until

KEY = {"x-api-key": "admin"}


def test_workers_trace_their_steps(model_dir: ModelDir, tmp_path: Path) -> None:
    with running(model_dir("qwen3")) as stack:
        traced = stack.start("services.prefill", "--profile-folder", str(tmp_path))
        plain = stack.start("services.decode")
        for worker in (traced, plain):
            worker.wait_ready()
        front = proxy(stack, [], [traced], [plain], "--admin-api-key", "admin")

        def told(path: str) -> tuple[int, dict[str, Any]]:
            status, answer = call(f"{front.url}{path}", {}, headers=KEY)
            return status, answer["workers"]

        assert call(f"{front.url}/start_profile", {})[0] == 401
        status, workers = told("/start_profile")
        assert (status, workers[plain.url]["status"]) == (200, 404)
        assert told("/start_profile")[0] == 400, "one trace at a time"
        asked = {"prompt": "How many?", "max_tokens": 4, "temperature": 0}
        assert call(f"{front.url}/v1/completions", asked)[0] == 200
        status, workers = told("/stop_profile")
        path = Path(workers[traced.url]["answer"]["trace"])
        until(path.exists, traced.log)
        names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
        assert any("linear" in str(name) or "mm" in str(name) for name in names)
        assert told("/stop_profile")[0] == 400 and path.parent == tmp_path
        only = f"/stop_profile?worker={plain.url}"
        assert call(f"{front.url}{only}", {}, headers=KEY)[0] == 404, "no worker that has it"


def test_a_trace_outlives_a_stall_of_the_engine(model_dir: ModelDir, tmp_path: Path) -> None:
    with running(model_dir("qwen3")) as stack:
        worker = stack.start("services.decode", "--profile-folder", str(tmp_path))
        worker.wait_ready()
        status, begun = call(f"{worker.url}/start_profile", {})
        assert status == 200
        with frozen(worker):
            until(lambda: call_status(f"{worker.url}/health") == 503)
            assert call(f"{worker.url}/stop_profile", {})[0] == 503
        until(lambda: call_status(f"{worker.url}/health") == 200)
        assert call(f"{worker.url}/stop_profile", {}) == (200, begun)
        until(Path(begun["trace"]).exists, worker.log)
