"""Pages for operators: flags, metrics, codes, alerts and links that they name exist."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = ("troubleshooting.md", "tuning.md", "from-vllm.md", "deployment.md", "weights.md")
IMAGES = {"triptych:proxy", "triptych:cpu", "triptych:cuda"}
FLAG = re.compile(r"`(--[a-z][a-z-]+)")
# Flags of other programs, by the page that names them.
OF_OTHERS = {
    "weights.md": {"--samples"},
    "from-vllm.md": {
        "--enable-auto-tool-choice", "--tensor-parallel-size", "--pipeline-parallel-size",
        "--data-parallel-size",
        "--profiler-config",
    },
}  # fmt: skip


def text(name: str) -> str:
    return (DOCS / name).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_flags_exist(page: str) -> None:
    ours = set(re.findall(r"^\| `(--[a-z-]+)`", text("flags.md"), re.MULTILINE))
    ours |= set(re.findall(r"Also `(--[a-z-]+)`", text("flags.md")))  # names of other systems
    ours |= {flag.replace("--", "--no-", 1) for flag in ours}
    found = set(FLAG.findall(text(page)))
    assert found - ours - OF_OTHERS.get(page, set()) == set()


def test_flags_of_vllm_that_we_lack_are_not_ours() -> None:
    assert not [flag for flag in OF_OTHERS["from-vllm.md"] if f"`{flag}`" in text("flags.md")]


@pytest.mark.parametrize("page", PAGES)
def test_metrics_exist(page: str) -> None:
    known = set(re.findall(r"^\| `(triptych\S+)`", text("metrics.md"), re.MULTILINE))
    known |= {name + end for name in known for end in ("_sum", "_count", "_bucket")}
    found = set(re.findall(r"\btriptych(?:_\w+)?:[a-z]\w+", text(page)))
    assert found - IMAGES <= known


@pytest.mark.parametrize("page", [*PAGES, "seeds.md", "from-dynamo.md", "../CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    folder = (DOCS / page).resolve().parent
    for target in re.findall(r"\]\(([^)#]+)\)", text(page)):
        assert target.startswith("https://") or (folder / target).exists(), target


def test_the_master_takes_dynamos_names_where_the_page_says_so() -> None:
    rows = [line.split("|")[1:3] for line in text("from-dynamo.md").splitlines() if "`--" in line]
    ours = set(re.findall(r"`(--[a-z-]+)`", text("flags.md")))
    ours |= {flag.replace("--", "--no-", 1) for flag in ours}
    rows = [row for row in rows if len(row) == 2]
    assert len(rows) > 12
    for theirs, here in rows:
        assert set(FLAG.findall(here)) <= ours, here
        taken = not ("not by that name" in here or "none" in here)
        assert all((flag in ours) == taken for flag in FLAG.findall(theirs)), theirs


def test_every_test_that_shows_a_capability_exists() -> None:
    rows = [line for line in text("seeds.md").splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`((?:unit|integration)/[\w/.]+)`", row)}
    assert len(named) > 40 and [n for n in named if not (ROOT / "tests" / n).exists()] == []


def test_every_row_of_the_seeds_has_a_state() -> None:
    rows = [line.split(" | ") for line in text("seeds.md").splitlines() if line.startswith("| ")]
    states = {row[1] for row in rows}
    assert states == {"state", "ours", "vLLM", "no", "missing"}


def test_every_alert_and_only_those_are_explained() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
    alerts = {
        rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule
    }
    rows = set(re.findall(r"^\| `(Triptych\w+)` \|", text("troubleshooting.md"), re.MULTILINE))
    assert rows == alerts


def test_every_code_that_is_explained_exists_with_that_status() -> None:
    rows = re.findall(r"^\| (\d{3}) `(\w+)` \|", text("troubleshooting.md"), re.MULTILINE)
    source = "".join(
        path.read_text()
        for folder in ("protocol", "proxy", "services")
        for path in (ROOT / folder).rglob("*.py")
    )
    codes = set(re.findall(r"code ?= ?\"(\w+)\"", source))
    assert rows and {code for _, code in rows} <= codes
