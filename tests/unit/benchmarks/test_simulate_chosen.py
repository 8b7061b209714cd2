"""What suits each policy, kept and measured again."""

from pathlib import Path

import pytest

from benchmarks.simulate import chosen, study
from benchmarks.simulate.__main__ import main
from benchmarks.simulate.chosen import Chosen
from benchmarks.simulate.contenders import LARGEST, OURS, Contender
from tests.support.known_loads import ONE, Known, known

LINES = (
    (Contender(OURS, ONE), 9.0),
    (Contender(OURS, ONE, LARGEST, "told, largest", tells=True), 10.0),
    (Contender("kv", ONE, {"overlap_credit": 2.5, "kv_encoders": "cached"}, "tuned"), 8.0),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    kept = Chosen("2026-11-28", 16, 1, LINES)
    chosen.write(kept, tmp_path / "chat.json")
    assert chosen.read(tmp_path / "chat.json", ONE.total) == kept


def test_a_study_of_what_was_chosen_looks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known()
    monkeypatch.setattr(study, "Bench", Known)
    monkeypatch.setattr(study, "tuned", lambda *_: pytest.fail("it was to look for nothing"))
    found = study.study(made.case, made.profile, [], 1, [11], 2, lambda _: None, chosen=LINES)
    assert [line.contender for line in found.lines] == [one for one, _ in LINES]
    # Good loads of a run that is known: 1 - (x / limit - 1) = 0.9, the limit 11 and 13.5.
    assert [line.goodput for line in found.lines] == pytest.approx([12.1, 12.1, 14.85], rel=0.05)


@pytest.mark.parametrize("text", [None, "{}", "no JSON"])
def test_without_a_file_that_can_be_read_nothing_is_measured(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "calibrated-chat.json"
    if text is not None:
        path.write_text(text)
    assert main(["--traces", "chat", "--chosen", str(tmp_path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(("lines", "said"), [(LINES, "fleets of 3 workers"), ((), "of no workers")])
def test_what_was_chosen_for_other_fleets_is_not_measured(
    lines: tuple[tuple[Contender, float], ...], said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    chosen.write(Chosen("2026-11-28", 16, 1, lines), tmp_path / "calibrated-chat.json")
    assert main(["--traces", "chat", "--chosen", str(tmp_path), "--workers", "16"]) == 2
    assert f"{said}, --workers is 16" in capsys.readouterr().err
