"""Parts of other packages, found by name; those of examples/plugin among them."""

import random
from pathlib import Path

import pytest

from connectors.config import parse_ec, parse_kv
from connectors.factory import Connectors
from protocol.errors import ConfigError, InternalError
from protocol.plugins import find_class, find_plugin, plugin_names
from protocol.types import GenerateRequest, SamplingParams
from services.engine.scheduling.ranking import check_policy, ranking
from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.reading import Reading, Thinking, thinking, tool_format
from services.master.config import MasterConfig
from services.master.placement.policies.factory import load_policy
from tests.support.installed_plugin import describe, install


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(install(tmp_path))
    return tmp_path


def request_of(tokens: int, priority: int = 0) -> GenerateRequest:
    return GenerateRequest("r", list(range(tokens)), SamplingParams(), priority=priority)


@pytest.mark.usefixtures("installed")
def test_installed_packages_are_listed_and_found() -> None:
    assert plugin_names("scheduling_policies") == ("shortest_first",)
    assert find_plugin("scheduling_policies", "shortest_first")(request_of(3)) == 3
    assert find_plugin("scheduling_policies", "longest_first") is None
    assert find_plugin("policies", "shortest_first") is None  # of another group


def test_without_a_package_there_is_none() -> None:
    assert plugin_names("transports") == ()
    assert find_plugin("transports", "logged_shm") is None


@pytest.mark.usefixtures("installed")
def test_a_policy_of_a_package_places() -> None:
    found = load_policy(MasterConfig(policy="nearest_rack"), random.Random(1))
    assert type(found).__name__ == "NearestRack"


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="nearest_rack"):
        load_policy(MasterConfig(policy="nearest_rack"), random.Random(1))


@pytest.mark.usefixtures("installed")
def test_a_ranking_of_a_package_is_used() -> None:
    check_policy("shortest_first")
    rank = ranking("shortest_first")
    assert rank(request_of(2)) < rank(request_of(5))


def test_rankings_of_ours() -> None:
    assert ranking("priority")(request_of(2, priority=-3)) == -3
    assert ranking("fcfs")(request_of(2, priority=-3)) == 0
    with pytest.raises(ConfigError, match="--scheduling-policy: 'soonest' is not one of fcfs"):
        check_policy("soonest")


@pytest.mark.parametrize("body", ["return 1 / 0", "return float('nan')", "return 'first'"])
def test_a_ranking_that_fails_costs_its_own_request(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"ranks_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(f"def rank(request):\n    {body}\n")
    describe(tmp_path, name, {"triptych.scheduling_policies": {"mine": f"{name}:rank"}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InternalError, match="--scheduling-policy mine"):
        ranking("mine")(request_of(1))


@pytest.mark.usefixtures("installed")
def test_parsers_of_a_package_read() -> None:
    calls = tool_format("arrow", "")
    marks = thinking("brackets", "")
    assert calls is not None
    assert issubclass(calls, ToolFormat)
    assert isinstance(marks, Thinking)
    tools = calls({"weather": Function("weather")})
    reader = Reading(tools, marks, most=1).reader()
    assert reader is not None
    heard = reader.last('[[ hm ]] so: => {"name": "weather", "arguments": {"city": "Bern"}}')
    assert (heard.reasoning, heard.text) == ("hm", "so:")
    assert [call.name for call in heard.calls] == ["weather"]


@pytest.mark.usefixtures("installed")
def test_a_transport_of_a_package_moves_embeddings(tmp_path: Path) -> None:
    ec = parse_ec("logged_shm")
    made = Connectors(ec, parse_kv('{"kv_connector": "logged_shm"}'))
    connector = made.make_ec("m", produces=True)
    try:
        assert connector.check_integrity() == []
    finally:
        connector.close()


def test_an_unknown_transport_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="logged_shm"):
        parse_ec("logged_shm")


def test_what_cannot_be_imported_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_part.py").write_text("raise RuntimeError('no licence')\n")
    describe(tmp_path, "broken-part", {"triptych.policies": {"broken": "broken_part:Policy"}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'broken' of broken-part .*RuntimeError: no licence"):
        find_plugin("policies", "broken")


def test_a_part_of_the_wrong_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(tmp_path, "wrong", {"triptych.tool_parsers": {"dates": "datetime:date"}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'dates' .* is no subclass of .*ToolFormat"):
        find_class("tool_parsers", "dates", ToolFormat)


def test_two_packages_with_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        describe(tmp_path, name, {"triptych.policies": {"mine": "datetime:date"}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="first and second both offer 'mine'"):
        find_plugin("policies", "mine")
