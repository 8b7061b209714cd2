"""Rows, ratios and their intervals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulate import report
from benchmarks.simulate.__main__ import main
from benchmarks.simulate.chosen import Chosen
from benchmarks.simulate.contenders import (
    OURS,
    Contender,
)
from benchmarks.simulate.profile import calibrated
from benchmarks.simulate.study import LOADS
from benchmarks.simulate.study_results import (
    CaseResult,
    ContenderResult,
    Curve,
    half_interval,
)
from tests.support.known_loads import ONE, OUTCOME, known

CHOSEN = Chosen("2026-11-28", 40, 1, ())


def result(ours: float, peer: float) -> CaseResult:
    made = known().case
    lines = [
        ContenderResult(Contender(OURS, ONE), (9.5, 9.5), (9.0, 9.0), OUTCOME),
        ContenderResult(
            Contender(OURS, ONE, kind="told", tells=True), (ours, ours), (ours, ours), OUTCOME
        ),
        ContenderResult(Contender("kv", ONE), (peer, peer), (8.0, 8.0), OUTCOME),
    ]
    good = {"cost": 13.5, "cost (told)": 14.0, "kv": 10.0}
    outcomes = {name: replace(OUTCOME, goodput=goodput) for name, goodput in good.items()}
    curves = [Curve(x.contender, [[outcomes[x.contender.name]] for _ in LOADS]) for x in lines]
    return CaseResult(replace(made, name="pictures"), tuple(lines), peer, curves, 3)


def test_workers_of_the_role_any_have_one_figure_of_how_busy_they_were() -> None:
    found = result(9.0, 10.0)
    line = replace(found.lines[0], contender=Contender(OURS, ONE, kind="any", elastic=True))
    found = replace(found, lines=(line, *found.lines[1:]))
    text = report.markdown(found, calibrated(), CHOSEN, [11], 1.0)
    assert "| 90% of all |" in next(x for x in text.splitlines() if x.startswith("| cost (any)"))


def test_two_files_of_one_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / folder / "trace.csv" for folder in "ab"]
    assert main([word for path in paths for word in ("--file", str(path))]) == 2
    assert "--file: two traces of one name" in capsys.readouterr().err


def test_intervals_are_students() -> None:
    """Of 1, 2, 3: 4.303 * 1 / sqrt(3)."""
    assert half_interval([1.0, 2.0, 3.0]) == pytest.approx(2.484, rel=0.01)
    assert half_interval([5.0]) == 0.0


@pytest.mark.parametrize(("ours", "holds"), [(12.0, True), (11.0, False)])
def test_rows_hold_against_the_best_peer(ours: float, holds: bool) -> None:
    told, told_arrived, untold, untold_arrived, lifetimes, overload = report.rows(
        [result(ours, 10.0)]
    )
    assert (told_arrived.ours, told_arrived.peer) == pytest.approx((ours, 8.0))
    assert (untold_arrived.ours, untold_arrived.ratio) == pytest.approx((9.0, 9.0 / 8.0))
    assert told_arrived.holds is untold_arrived.holds is None
    assert (lifetimes.ours, lifetimes.holds) == (12.0, True)
    assert (untold.ours, untold.bar, untold.holds) == (pytest.approx(9.5), "ratio >= 1", False)
    assert (told.ours, told.peer) == pytest.approx((ours, 10.0))
    assert (told.bar, told.holds) == ("ratio >= 1.15", holds)
    assert (overload.ours, overload.peer, overload.holds) == (14.0, 10.0, True)


def test_a_ratio_that_is_the_same_on_every_seed_is_certain() -> None:
    """However much seeds differ."""
    lines = [
        ContenderResult(
            Contender(OURS, ONE, kind="told", tells=True), (8.0, 16.0, 2.0), (1.0,), OUTCOME
        ),
        ContenderResult(Contender("kv", ONE), (4.0, 8.0, 1.0), (1.0,), OUTCOME),
    ]
    found = replace(result(9.0, 10.0), lines=tuple(lines))
    assert report.pair_interval(found, told=True) == pytest.approx((2.0, 2.0))
    doubtful = replace(lines[0], sustained=(8.0, 24.0, 2.0))
    low, high = report.pair_interval(replace(found, lines=(doubtful, lines[1])), told=True)
    assert low < 2.0 < found.ratio(told=True) * 1.1 < high


def test_a_lost_trace_stays_in_the_table() -> None:
    text = report.markdown(result(9.0, 10.0), calibrated(), CHOSEN, [11, 12], 1.0)
    rows: list[Any] = [x for x in text.splitlines() if x.startswith("| sustained goodput, pic")]
    assert len(rows) == 2 and all("MISSED" in row for row in rows)
    assert "| – / 80% / 90% |" in text


def test_what_was_drawn_for_the_highest_load_has_its_options() -> None:
    found = result(9.0, 10.0)
    assert "Drawn for" not in report.markdown(found, calibrated(), CHOSEN, [11], 1.0)
    drawn = replace(found.curves[-1].contender, kind="refusing", options={"busy_requests": 7})
    curves = [*found.curves[:-1], replace(found.curves[-1], contender=drawn)]
    text = report.markdown(replace(found, curves=curves), calibrated(), CHOSEN, [11], 1.0)
    assert f"- kv (refusing), {ONE}: busy_requests=7" in text.splitlines()
