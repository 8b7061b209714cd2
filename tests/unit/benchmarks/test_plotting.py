"""A plot that cannot be drawn is refused before anything is measured for it."""

import importlib.util
from collections.abc import Callable, Sequence

import pytest

from benchmarks.plan.options import parse
from benchmarks.simulate.__main__ import main as simulate
from benchmarks.step_time.__main__ import main as step_time

PLAN = [
    "--trace",
    "chat",
    "--rate",
    "1",
    "--slo",
    "ttft=1,tpot=1",
    "--model",
    "calibrated",
    "--plot",
    "curve.svg",
]


@pytest.mark.parametrize(
    ("command", "flags"),
    [(simulate, ["--out", "."]), (step_time, ["--svg", "plot.svg"]), (parse, PLAN)],
)
def test_without_matplotlib_a_plot_is_refused_at_once(
    command: Callable[[Sequence[str]], object],
    flags: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        command(flags)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "matplotlib is not installed" in said
    assert next(flag for flag in reversed(flags) if flag.startswith("--")) in said
