"""`benchmarks.ask` and a model that knows nothing: its misses are shown, and are no failure."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.ask import main
from tests.conftest import ModelDir
from tests.support.stack import Process, running


@pytest.fixture(scope="module")
def server(model_dir: ModelDir) -> Iterator[Process]:
    with running(model_dir("qwen2_vl")) as stack:
        worker = stack.start("services.pdfusion")
        worker.wait_ready()
        yield worker


def test_a_miss_is_shown_and_is_no_failure(
    server: Process, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--base-url", server.url, "--seed", "1", "--kinds", "describe,two_images,text"]
    assert main([*argv, "--save", str(tmp_path / "pictures")]) == 0
    out = capsys.readouterr().out
    assert out.count("Question: ") == 3
    assert out.count("[expected: ") == 3
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 3


def test_an_error_of_the_server_is_told_in_its_words(
    server: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--base-url", server.url, "--model", "another"]) == 1
    error = capsys.readouterr().err
    assert "HTTP 404: " in error
    assert "another" in error


def test_a_server_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", "http://127.0.0.1:9"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: http://127.0.0.1:9/v1/models: ")
    assert "refused" in error
