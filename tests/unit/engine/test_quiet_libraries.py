"""A worker's log has the worker's own lines."""

import pytest

from services.engine.environment import quieted
from services.frontend.model_folder import find_model
from tests.support.stack import Process


def test_the_operators_word_wins() -> None:
    said = {"TRANSFORMERS_VERBOSITY": "info", "HF_HUB_DISABLE_PROGRESS_BARS": "0"}
    assert quieted({**said, "KEPT": "yes"}) == {**said, "KEPT": "yes"}


def test_a_bare_worker_writes_nothing_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its warnings about the parts that an encoder leaves out, nor its bar."""
    for name in quieted({}):
        monkeypatch.delenv(name, raising=False)
    flags = ("--model", str(find_model("demo")), "--log-level", "info")
    worker = Process("services.encoder", *flags, env={"OMP_NUM_THREADS": "1"}, forked=False)
    try:
        worker.wait_ready()
    finally:
        worker.stop()
    assert not [line for line in worker.log if "[transformers]" in line or "Loading w" in line]
