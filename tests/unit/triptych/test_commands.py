"""The console command: its help, what it refuses, what starts without the packages of workers."""

import subprocess
import sys
from pathlib import Path

import pytest

from triptych import commands
from triptych.commands import COMMANDS, main

# As where the extra `worker` is not installed: what workers need cannot even be found.
BLOCKED = """
import importlib.util, sys
HEAVY = ("torch", "transformers", "safetensors", "triton")
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from triptych.commands import COMMANDS
for name, command in COMMANDS.items():
    if not command.is_worker:
        command.find()
        print(name)
"""


def test_all_but_workers_start_without_the_packages_of_workers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=120, check=False,
        env={"PYTHONPATH": str(Path(commands.__file__).parents[1])}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "serve",
        "restart",
        "mock",
        "proxy",
        "master",
        "list",
        "ask",
        "bench",
        "plan",
    ]


@pytest.mark.parametrize("words", [["decode"], ["serve", "--num-prompts", "0"]])
def test_workers_without_their_packages_are_told_what_to_install(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: workers need torch, ")
    assert line.endswith("pip install 'triptych[worker]'")


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert set(COMMANDS) <= {line.split()[0] for line in lines if line.startswith("  ")}


def test_a_command_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server"]) == 2
    assert capsys.readouterr().err.startswith("error: 'server' is not one of serve, ")


def test_serve_refuses_a_bad_setting_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err
    assert main(["serve", "--engine", "vllm", "--vllm", "/nowhere/vllm"]) == 2
    assert "VLLM=/nowhere/vllm is no executable" in capsys.readouterr().err
