"""Runs that were made before."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulate.bench import Bench
from benchmarks.simulate.contenders import (
    Contender,
)
from benchmarks.simulate.memo import Memo
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.profile import calibrated
from tests.support.known_loads import ONE, OUTCOME, known


def test_a_run_that_was_made_is_not_made_again(tmp_path: Path) -> None:
    made: list[int] = []

    def run(number: int) -> Outcome:
        made.append(number)
        return replace(OUTCOME, offered=float(number))

    for _ in range(2):
        memo = Memo(tmp_path)  # as another process has it
        assert [memo.of(("a", n), lambda n=n: run(n)).offered for n in (1, 2)] == [1.0, 2.0]
    assert made == [1, 2]
    assert [Memo().of(("a", 1), lambda: run(3)).offered, len(made)] == [3.0, 3]


def test_a_trace_that_changed_is_run_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def run(bench: Bench, *_: object, **__: object) -> Outcome:
        made.append(bench.case.digest)
        return OUTCOME

    monkeypatch.setattr(Bench, "_run", run)
    for digest in ("old", "new", "old"):
        found = replace(known().case, digest=digest)
        Bench(found, calibrated(), Memo(tmp_path)).run(Contender("cost", ONE), 1, 5.0)
    assert made == ["old", "new"]


def test_runs_in_which_no_worker_moves_depend_on_less_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo = Memo(tmp_path)
    assert [memo.of("a", lambda n=n: replace(OUTCOME, offered=n), moves=bool(n)).offered
            for n in (0.0, 1.0)] == [0.0, 1.0]  # fmt: skip
    asked: list[bool] = []
    monkeypatch.setattr(Memo, "of", lambda self, key, run, *, moves: asked.append(moves))
    for elastic in (False, True):
        Bench(known().case, calibrated()).run(Contender("cost", ONE, elastic=elastic), 1, 5.0)
    assert asked == [False, True]
    before = Memo(tmp_path)._code[0]
    monkeypatch.setattr("benchmarks.simulate.memo._MOVES", ())
    assert Memo(tmp_path)._code[0] != before


def test_figures_of_a_run_without_answers_are_kept(tmp_path: Path) -> None:
    """No request was answered, so no percentile is known."""
    for _ in range(2):
        kept = Memo(tmp_path).of("a", lambda: replace(OUTCOME, ttft_p99=math.nan))
        assert math.isnan(kept.ttft_p99) and kept.offered == OUTCOME.offered
