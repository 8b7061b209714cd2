"""The parts of scripts/prove_monitoring.sh that need no Prometheus."""

from typing import Any

import pytest
import yaml

from scripts.dashboards import DASHBOARDS, FOLDER
from scripts.monitoring.__main__ import main
from scripts.monitoring.alerts import Journal, seconds_of, shortened_config, shortened_rules
from scripts.monitoring.panels import (
    EMPTY,
    PanelQuery,
    QueryResult,
    queries_of,
    series_with_figures,
    table,
)

PROMETHEUS = FOLDER.parents[1] / "prometheus"


def test_every_query_of_every_dashboard_is_asked_without_grafanas_variable() -> None:
    asked = list(queries_of(FOLDER))
    panels = [panel for each in DASHBOARDS for panel in each.panels]
    assert len(asked) == sum(len(panel.queries) for panel in panels)
    assert not [query for query in asked if "$" in query.expr]
    assert {query.dashboard for query in asked} == {each.name for each in DASHBOARDS}
    assert EMPTY.keys() <= {query.panel for query in asked}


def matrix(*series: list[str]) -> list[dict[str, Any]]:
    return [{"metric": {}, "values": [[0, value] for value in values]} for values in series]


def test_a_series_counts_if_it_was_a_number_once() -> None:
    assert series_with_figures([]) == 0
    assert series_with_figures(matrix(["NaN", "NaN"], ["+Inf"])) == 0
    assert series_with_figures(matrix(["NaN", "0"], ["1.5", "NaN"], ["NaN"])) == 2


def test_the_table_names_what_has_no_figure_and_why() -> None:
    explained, why = next(iter(EMPTY.items()))
    lines = table([
        QueryResult(PanelQuery("slo: Requests", "ok", "x"), 2),
        QueryResult(PanelQuery("slo: Errors", "all", "some_errors"), 0),
        QueryResult(PanelQuery(explained, "", "y"), 0),
    ])  # fmt: skip
    assert "| slo | 2 | 1 | 2 |" in lines
    assert [line for line in lines if line.startswith("- ")] == [
        "- slo: Errors (all): MISSING: some_errors",
        f"- {explained} (): {why}",
    ]


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("2m", 120), ("1h", 3600)])
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def test_a_duration_of_two_units_is_refused() -> None:
    with pytest.raises(ValueError, match="1m30s"):
        seconds_of("1m30s")


def test_only_the_waits_of_the_rules_are_shorter() -> None:
    text = (PROMETHEUS / "alerts.yaml").read_text()
    before, after = yaml.safe_load(text), yaml.safe_load(shortened_rules(text, 6))
    pairs = [
        (old, new)
        for one, other in zip(before["groups"], after["groups"], strict=True)
        for old, new in zip(one["rules"], other["rules"], strict=True)
    ]
    for old, new in pairs:
        assert ("for" in old) == ("for" in new)
        if "for" in old:
            assert new.pop("for") == f"{round(seconds_of(old.pop('for')) * 1000 / 6)}ms"
        assert old == new
    text = (PROMETHEUS / "prometheus.yaml").read_text()
    config, own = yaml.safe_load(shortened_config(text, 6)), yaml.safe_load(text)
    assert config["global"].pop("evaluation_interval") == "2500ms"
    assert own["global"].pop("evaluation_interval") == "15s"
    assert config == own


def alert(state: str) -> dict[str, Any]:
    labels = {"alertname": "Down", "instance": "d:1", "severity": "warning"}
    return {"state": state, "labels": labels}


def test_the_journal_has_the_first_time_of_each_state() -> None:
    journal = Journal()
    journal.note(1, [])
    journal.note(2, [alert("pending")])
    journal.note(3, [alert("pending")])
    assert not journal.has_fired("Down", "instance", "d:1")
    journal.note(9, [alert("firing")])
    journal.note(10, [alert("firing")])
    assert journal.has_fired("Down", "instance", "d:1")
    assert not journal.has_fired("Down", "instance", "d:2")
    assert journal.table()[-1] == "| Down | instance d:1 | 2.0 s | 9.0 s |"


def test_an_alert_that_was_never_pending_is_not_taken_for_one_that_was() -> None:
    journal = Journal()
    journal.note(1, [alert("firing")])
    assert not journal.has_fired("Down", "instance", "d:1")
    assert journal.table()[-1] == "| Down | instance d:1 | – | 1.0 s |"


def test_an_alert_that_fires_before_it_is_pending_has_not_fired_as_it_should() -> None:
    journal = Journal()
    journal.note(1, [alert("firing")])
    journal.note(2, [alert("pending")])
    assert not journal.has_fired("Down", "instance", "d:1")


@pytest.mark.parametrize("divisor", ["0", "-1", "x", "nan"])
def test_a_divisor_that_is_none_is_refused(
    divisor: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["monitoring", "--prometheus", "p", "--divide", divisor])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert f"--divide: '{divisor}' is not a number above 0" in capsys.readouterr().err
