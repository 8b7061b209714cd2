"""Dashboards and alerts: what they ask for exists, and Prometheus' own tool takes the rules."""

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.dashboards import DASHBOARDS, FOLDER
from scripts.grafana import render
from scripts.references import metrics_page
from tests.support.syntax import parsed_file, uncollected

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
METRIC = re.compile(r"\btriptych\w*:[\w:]+")
OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")
promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: Debian's package prometheus has it"
)


@cache
def documented() -> dict[str, str]:
    """Name and kind of each metric."""
    rows = re.findall(r"^\| `(\S+)` \| (\w+) \|", metrics_page(), re.MULTILINE)
    return {
        name + end: kind
        for name, kind in rows
        for end in (OF_A_HISTOGRAM if kind == "histogram" else ("",))
    }


@cache
def rules() -> list[dict[str, Any]]:
    whole = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())
    return [rule for group in whole["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """(where it stands, PromQL) of every query."""
    for rule in rules():
        yield rule.get("alert", rule.get("record")), rule["expr"]
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                yield f"{dashboard.name}: {panel.title}", query.expr


@pytest.mark.parametrize(("place", "expr"), [*expressions()], ids=[p for p, _ in expressions()])
def test_every_metric_exists_and_is_used_as_what_it_is(place: str, expr: str) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    known, used = documented(), set(METRIC.findall(expr))
    assert used <= known.keys() | recorded, place
    assert used or "up{" in expr
    for name in used & known.keys():
        if known[name] == "counter" or name.endswith(OF_A_HISTOGRAM):
            assert re.search(rf"(rate|increase)\({re.escape(name)}\b", expr), f"{place}: {name}"


def test_every_label_exists() -> None:
    labels = set(
        re.findall(
            r"`(\w+)`",
            " ".join(re.findall(r"\| (?:counter|gauge|histogram) \| ([^|]*)\|", metrics_page())),
        )
    )
    labels |= {"instance", "job", "le"}
    for place, expr in expressions():
        groups = re.findall(r"\bby \(([^)]*)\)", expr)
        used = {label.strip() for group in groups for label in group.split(",")}
        assert used <= labels, place


def test_every_error_code_of_the_rules_is_one_of_ours() -> None:
    source = "".join(
        path.read_text()
        for folder in ("protocol", "proxy", "services")
        for path in (ROOT / folder).rglob("*.py")
    )
    ours = set(re.findall(r"code ?= ?\"(\w+)\"", source))
    named = codes_of_the_rules()
    assert named and named <= ours


def test_every_error_that_is_not_a_clients_is_counted_by_a_rule() -> None:
    counted = codes_of_the_rules()
    missing = {code for code, status in codes_with_status() if status >= 500} - counted
    # A process that does not start answers no request; a client that is too slow gets a 408.
    assert missing == {"config_error", "request_timeout"}


def codes_of_the_rules() -> set[str]:
    """Those of any rule."""
    return {
        code for rule in rules() for codes in re.findall(r'code=~"([^"]*)"', rule["expr"])
        for code in codes.split("|")
    }  # fmt: skip


def codes_with_status() -> set[tuple[str, int]]:
    """Each code that an error class has, or that one is raised with."""
    classes: dict[str, ast.ClassDef] = {}
    raised: list[tuple[str, str]] = []
    folders = ("protocol", "connectors", "proxy", "services")
    with uncollected():
        files = [parsed_file(p) for folder in folders for p in (ROOT / folder).rglob("*.py")]
        for node in (node for file in files for node in file.nodes):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                raised += [
                    (str(word.value.value), node.func.id) for word in node.keywords
                    if word.arg == "code" and isinstance(word.value, ast.Constant)
                ]  # fmt: skip
        del files

    def own(name: str, member: str) -> Any:
        """Of a class or the first of its bases that has it; None outside of the error tree."""
        node = classes.get(name)
        for statement in node.body if node is not None else []:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == member:
                value = statement.value
                if isinstance(value, ast.Attribute):  # as another class has it
                    return own(ast.unparse(value.value), value.attr)
                return ast.literal_eval(value)
        bases = (ast.unparse(base) for base in node.bases) if node is not None else ()
        return next((found for found in (own(b, member) for b in bases) if found is not None), None)

    def in_tree(name: str) -> bool:
        bases = classes[name].bases if name in classes else []
        return name == "TriptychError" or any(in_tree(ast.unparse(base)) for base in bases)

    kinds = [name for name in classes if in_tree(name)]
    of_classes = [(own(name, "code"), name) for name in kinds]
    found = [*of_classes, *((code, name) for code, name in raised if name in kinds)]
    return {(code, own(name, "status")) for code, name in found}


def test_each_alert_is_tested() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    tested = (PROMETHEUS / "alerts.test.yaml").read_text()
    for alert in alerts:
        assert f"alertname: {alert}" in tested, alert
    assert all(rule["annotations"]["summary"] for rule in rules() if "alert" in rule)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=[each.name for each in DASHBOARDS])
def test_the_dashboards_are_those_of_the_script(dashboard: Any) -> None:
    text = (FOLDER / f"{dashboard.name}.json").read_text()
    assert text == render(dashboard), "run python -m scripts.dashboards"
    panels = json.loads(text)["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) == len({panel["title"] for panel in panels})


def test_dashboards_and_rules_are_where_they_are_looked_for() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())
    assert config["rule_files"] == ["alerts.yaml"]
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    mounted = dict(
        volume.removesuffix(":ro").split(":")
        for name in ("prometheus", "grafana")
        for volume in compose[name]["volumes"]
        if "$" not in volume
    )
    assert mounted["./prometheus/alerts.yaml"] == "/etc/prometheus/alerts.yaml"
    (provider,) = yaml.safe_load((GRAFANA / "dashboards.yaml").read_text())["providers"]
    assert mounted["./grafana/dashboards"] == provider["options"]["path"]
    home = compose["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (FOLDER / Path(home).name).exists()


@promtool
def test_the_rules_do_what_their_tests_say() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts.test.yaml"],
        cwd=PROMETHEUS, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_every_query_of_the_dashboards_is_promql(tmp_path: Path) -> None:
    asked = [expr.replace("$__rate_interval", "5m") for _, expr in expressions()]
    file = tmp_path / "rules.yaml"
    named = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(asked)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": named}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
