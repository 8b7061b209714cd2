"""The package of examples/plugin in real processes: a model family, a transport, an order of its
own, and the tokens of `generate()`."""

from pathlib import Path

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens
from tests.support.conversations import asking, picture
from tests.support.installed_plugin import install
from tests.support.reference import reference_generate
from tests.support.stack import idle, proxy, running
from tests.support.tiny_models import PLUGIN_FAMILY

TOKENS = 12


def test_a_family_and_a_transport_of_a_package(
    model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path)), prepend=":")
    cases = [
        asking(picture(1), "What is in this image?"),
        asking("Which?", picture(2, 160, 100), "or", picture(1), "?"),
        asking("Hello"),
    ]
    with running(model_dir(PLUGIN_FAMILY)) as stack:
        flags = ("--ec-transfer-config", "logged_shm", "--log-level", "info")
        encoder = stack.start("services.encoder", *flags)
        decode = stack.start("services.decode", *flags, "--scheduling-policy", "shortest_first")
        for worker in (encoder, decode):
            worker.wait_ready()
        server = proxy(stack, [encoder], [], [decode])
        expected = [reference_generate(stack.model, case, TOKENS) for case in cases]
        assert all_tokens(server, cases, max_tokens=TOKENS) == expected
        assert any("bytes of" in line and "are read from" in line for line in decode.log)
        for worker in (encoder, decode):
            idle(worker)
        assert set(stack.stop()) == {0}
