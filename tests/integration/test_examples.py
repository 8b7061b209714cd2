"""The programs of examples/, against a worker without a model."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from services.frontend.model_folder import find_model
from tests.support.mocks import FAST
from tests.support.stack import Process, proxy, running

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def worker() -> Iterator[Process]:
    flags = ("--role", "pdfusion", "--model", str(find_model("demo")), "--decode-base-ms", "0.1")
    process = Process("services.mock", *flags, env={})
    process.wait_ready()
    yield process
    process.stop()


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    file = tmp_path / "picture.png"
    Image.new("RGB", (64, 64), "red").save(file)
    return file


def run(worker: Process, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENAI_BASE_URL": f"{worker.url}/v1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("name", ["picture.py", "picture.mjs", "picture.sh"])
def test_a_picture_is_asked_about(name: str, worker: Process, picture: Path) -> None:
    program = {".py": sys.executable, ".mjs": "node", ".sh": "bash"}[Path(name).suffix]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    done = run(worker, program, str(EXAMPLES / name), str(picture), 'What is "this"?')
    assert done.returncode == 0, done.stderr
    told = done.stdout.strip()
    assert json.loads(told)["choices"][0]["message"]["content"] if name == "picture.sh" else told


def test_a_folder_is_captioned(worker: Process, picture: Path, tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), "blue").save(picture.with_name("another.png"))
    picture.with_name("notes.txt").touch()
    lines = tmp_path / "captions.jsonl"
    done = run(
        worker, sys.executable, str(EXAMPLES / "captions.py"), str(picture.parent), str(lines)
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert sorted(each["file"] for each in found) == ["another.png", "picture.png"]
    assert all(each["caption"] for each in found)


def test_the_notebooks_cells_run_and_it_has_no_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    book: dict[str, Any] = json.loads((EXAMPLES / "stages.ipynb").read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == 4 and all(cell["outputs"] == [] for cell in cells)
    names: dict[str, Any] = {}
    with running(find_model("demo")) as stack:
        roles = ("encode", "prefill", "decode")
        workers = [stack.start("services.mock", "--role", role, *FAST) for role in roles]
        for worker in workers:
            worker.wait_ready()
        encode, prefill, decode = ([worker] for worker in workers)
        front = proxy(stack, encode, prefill, decode)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{front.url}/v1")
        for number, cell in enumerate(cells):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        names["client"].close()
    assert {"encode", "prefill", "decode", "total"} <= set(names["stages"])
    cached, _, prompt = names["counts"].partition(" of ")
    assert 0 < int(cached) <= int(prompt)
