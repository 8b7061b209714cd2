"""Pages for operators: flags, metrics, codes, alerts and links that they name exist."""

import re
from pathlib import Path

import pytest
import yaml

from protocol.errors import InvalidRequest
from protocol.rtp_config import config_fields

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = (
    "troubleshooting.md", "tuning.md", "from-vllm.md", "deployment.md", "weights.md",
    "getting-started.md", "processes.md", "serving-a-model.md", "from-rtp-llm.md", "platforms.md",
    "monitoring.md",
)  # fmt: skip
IMAGES = {"triptych:proxy", "triptych:cpu", "triptych:cuda"}
FLAG = re.compile(r"`(--[a-z][a-z-]+)(?![\w-])")  # others write some with underscores
SHOWS = re.compile(r"`((?:unit|integration|conformance|security)/[\w/.]+)`")
# Flags of other programs, by the page that names them.
OF_OTHERS = {
    "weights.md": {"--samples"},
    "from-vllm.md": {
        "--enable-auto-tool-choice", "--tensor-parallel-size", "--pipeline-parallel-size",
        "--data-parallel-size",
        "--profiler-config",
    },
    "monitoring.md": {"--divide", "--registered"},
    "platforms.md": {"--only-binary"},
    "processes.md": {"--enable-scale-out"},
    "serving-a-model.md": {"--tensor-parallel-size"},
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


@pytest.mark.parametrize(
    "page",
    [
        *PAGES,
        "seeds.md",
        "from-dynamo.md",
        "routes.md",
        "api.md",
        "../CHANGELOG.md",
        "../README.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    folder = (DOCS / page).resolve().parent
    for target in re.findall(r"\]\(([^)#]+)\)", text(page)):
        assert target.startswith("https://") or (folder / target).exists(), target


def test_the_master_takes_dynamos_names_where_the_page_says_so() -> None:
    router = text("from-dynamo.md").partition("## The router")[2].splitlines()
    rows = [line.split("|")[1:3] for line in router if "`--" in line]
    ours = set(re.findall(r"`(--[a-z-]+)`", text("flags.md")))
    ours |= {flag.replace("--", "--no-", 1) for flag in ours}
    rows = [row for row in rows if len(row) == 2]
    assert len(rows) > 12
    for theirs, here in rows:
        assert set(FLAG.findall(here)) <= ours, here
        taken = not ("not by that name" in here or "none" in here)
        assert all((flag in ours) == taken for flag in FLAG.findall(theirs)), theirs


@pytest.mark.parametrize("page", ["from-dynamo.md", "from-rtp-llm.md"])
def test_flags_in_the_second_columns_are_ours(page: str) -> None:
    ours = set(re.findall(r"`(--[a-z-]+)`", text("flags.md")))
    ours |= {flag.replace("--", "--no-", 1) for flag in ours}
    rows = [line.split(" | ") for line in text(page).splitlines() if line.startswith("| `--")]
    assert len(rows) > 20
    assert {flag for row in rows for flag in FLAG.findall(row[1])} <= ours


def test_members_of_rtp_llms_config_become_what_the_page_says() -> None:
    part = text("from-rtp-llm.md").partition("## generate_config")[2]
    named = {name for line in part.splitlines() for name in re.findall(r"`(\w+)`", line[:200])}
    config = {"stop_words_list": [[1]], "do_sample": False, "max_new_tokens": 5, "random_seed": 1}
    assert config_fields(config, "") == {
        "max_tokens": 5, "seed": 1, "temperature": 0, "stop_token_ids": [1],
    }  # fmt: skip
    assert config.keys() - {"do_sample"} <= named
    for name in ("num_beams", "no_repeat_ngram_size", "return_logits", "thinking_mode"):
        assert name in named
        with pytest.raises(InvalidRequest, match=name):
            config_fields({name: 5}, "")


def rows_of_the_seeds() -> list[list[str]]:
    """[capability, state, where or why not] of each."""
    lines = [line for line in text("seeds.md").splitlines() if line.startswith("| ")]
    rows = [line.strip("| ").split(" | ") for line in lines]
    return [row for row in rows if row[1] != "state"]


def test_every_test_that_shows_a_capability_exists() -> None:
    named = {name for row in rows_of_the_seeds() for name in SHOWS.findall(row[2])}
    assert len(named) > 100 and [n for n in named if not (ROOT / "tests" / n).exists()] == []


def test_every_row_of_the_seeds_is_shown_or_says_why_not() -> None:
    rows = rows_of_the_seeds()
    assert len(rows) > 150 and {len(row) for row in rows} == {3}
    assert {state for _, state, _ in rows} == {"ours", "vLLM", "no"}
    for capability, state, where in rows:
        if state == "ours":
            assert SHOWS.search(where) or ".md" in where, capability
        else:
            assert len(where) > 20 or where == "as above", capability


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
