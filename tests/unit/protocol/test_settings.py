"""Options of every role: each has bounds or choices, and a bad value is one line that names it."""

import dataclasses
import itertools
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from protocol.errors import ConfigError
from protocol.flag_lists import urls
from protocol.options import Rule, count, option, port_option, rule_of, seconds, sections
from protocol.settings import misspelt, resolve
from proxy.config import ProxyConfig
from services.master.config import MasterConfig
from services.mock.config import MockConfig
from services.worker.config import WorkerConfig
from triptych.launch.options import ServeConfig

ROLES: tuple[type[Any], ...] = (
    ProxyConfig, MasterConfig, WorkerConfig, MockConfig, ServeConfig,
)  # fmt: skip
Option = tuple[str, type, Rule]


def options(role: type[Any]) -> list[Option]:
    kinds = get_type_hints(role)
    return [(field.name, kinds[field.name], rule_of(field)) for field in dataclasses.fields(role)]


@dataclass(frozen=True)
class Config:
    max_num_seqs: int = count(64, "Requests at once.", "requests")
    timeout: float = seconds(1.0, "How long it may take.")
    share: float = option(0.5, "Share of it.", "share", above=0, below=1)
    port: int = port_option(8000, "TCP port.", env="PROXY_PORT")
    mode: str = option("auto", "What is done.", choices=("auto", "on", "off"))
    eager: bool = option(False, "Do it at once.")
    master_url: str = urls("URLs of masters.")


def message(argv: list[str], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(Config, argv, environ or {})
    assert "\n" not in caught.value.message
    return caught.value.message


def bounded(option: Option) -> bool:
    _, kind, rule = option
    if kind in (int, float):
        return bool(rule.bounded and rule.unit)
    return bool(rule.choices or rule.unit) if kind is str else kind is bool


@pytest.mark.parametrize("role", ROLES)
def test_every_number_has_bounds_and_a_unit_and_every_text_says_what_it_is(role: type[Any]) -> None:
    assert [option for option in options(role) if not bounded(option)] == []


@pytest.mark.parametrize("role", ROLES)
def test_every_option_is_explained_in_a_sentence(role: type[Any]) -> None:
    for name, _, rule in options(role):
        assert rule.help.endswith(".") and len(rule.help.split()) >= 3, name
        assert rule.help[0].isupper() or ": " in rule.help[:16], name


@pytest.mark.parametrize("role", ROLES)
def test_a_usage_line_has_a_short_noun_or_few_choices_for_a_value(role: type[Any]) -> None:
    for name, kind, rule in options(role):
        if kind is not bool:
            noun = re.fullmatch(r"[A-Za-z]+([_=|/][A-Z]+)?", rule.metavar)
            assert len(rule.metavar) <= (16 if noun else 40), (name, rule.metavar)
            assert noun or rule.metavar == "|".join(rule.choices), name


@pytest.mark.parametrize("role", ROLES)
def test_a_pattern_has_words_for_its_error(role: type[Any]) -> None:
    found = [
        name for name, _, rule in options(role) if bool(rule.form) != (rule.pattern is not None)
    ]
    assert found == []


@pytest.mark.parametrize("role", ROLES)
def test_every_option_stands_under_a_heading_of_the_help(role: type[Any]) -> None:
    found = sections(role)
    assert "" not in found
    names = [name for group in found.values() for name in group]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(role))


def test_the_help_has_headings_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        resolve(ProxyConfig, ["--help"], {}, prog="proxy")
    shown = capsys.readouterr().out
    queue, timeouts = shown.index("\nQueue:\n"), shown.index("\nTimeouts and retries:\n")
    assert queue < shown.index("TRIPTYCH_MAX_QUEUE") < timeouts


@pytest.mark.parametrize("role", ROLES)
def test_what_is_a_choice_in_one_role_is_one_in_all(role: type[Any]) -> None:
    enumerated = {
        field.name for kind in ROLES for field in dataclasses.fields(kind) if rule_of(field).choices
    }
    for field in dataclasses.fields(role):
        assert field.name not in enumerated or rule_of(field).choices


@pytest.mark.parametrize("role", ROLES)
def test_defaults_are_admitted(role: type[Any]) -> None:
    given = {f"TRIPTYCH_{f.name.upper()}": str(f.default) for f in dataclasses.fields(role)}
    assert resolve(role, [], given) == role()


def test_no_option_of_one_role_passes_for_a_misspelt_one_of_another() -> None:
    names = [{field.name for field in dataclasses.fields(role)} for role in ROLES]
    for ours, theirs in itertools.permutations(names, 2):
        for foreign in theirs - ours:
            assert misspelt(foreign, ours) is None, foreign


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("max-num-seqs", "-3", "a whole number from 1"),
        ("max-num-seqs", "1.5", "not a whole number"),
        ("timeout", "nan", "out of range"),
        ("timeout", "inf", "out of range"),
        ("timeout", "-1", "out of range"),
        ("share", "0", "above 0, below 1"),
        ("share", "1", "above 0, below 1"),
        ("port", "99999", "from 0 to 65535"),
        ("mode", "loud", "auto, on, off"),
        ("master-url", "http://a,b", "'b' is not"),
    ],
)
def test_a_bad_value_names_its_source(tmp_path: Path, flag: str, value: str, reason: str) -> None:
    name = flag.replace("-", "_")
    variable = f"TRIPTYCH_{name.upper()}"
    file = tmp_path / "c.yaml"
    file.write_text(f"eager: yes\n\n{name}: {value}\n")
    for start, argv, environ in (
        (f"--{flag}: ", [f"--{flag}={value}"], {}),
        (f"{variable}: ", [], {variable: value}),
        (f"{file}, line 3: {name}: ", ["--config", str(file)], {}),
    ):
        said = message(argv, environ)
        assert said.startswith(start) and said.count(": ") < 4 and reason in said


def test_the_first_of_several_bad_values_is_named() -> None:
    assert message(["--port=-1", "--timeout=0", "--max-num-seqs=0"]).startswith("--max-num-seqs")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--max-num-seq", "3"], "unknown flag --max-num-seq; did you mean --max-num-seqs?"),
        (["--no-eagre"], "unknown flag --no-eagre; did you mean --no-eager?"),
        (["--max", "3"], "unknown flag --max"),
        (["--mod=on"], "unknown flag --mod; did you mean --mode?"),
        (["all"], "unknown argument all"),
        (["--port"], "--port: expected one argument"),
    ],
)
def test_a_flag_that_is_none_is_named_and_the_right_one_is_too(argv: list[str], said: str) -> None:
    assert message(argv) == said


def test_the_masters_options_have_dynamos_names_too() -> None:
    flags = (
        "--kv-overlap-score-weight", "2", "--router-temperature", "0.5", "--router-ttl", "60",
        "--active-decode-blocks-threshold", "0.8",
    )  # fmt: skip
    found = resolve(MasterConfig, flags, {})
    assert (found.overlap_weight, found.temperature) == (2.0, 0.5)
    assert (found.predict_ttl, found.busy_kv_usage) == (60.0, 0.8)
    with pytest.raises(ConfigError, match=r"^--temperature: "):
        resolve(MasterConfig, ["--router-temperature", "-1"], {})


def test_the_model_may_stand_without_its_flag() -> None:
    """As in `vllm serve MODEL`."""
    assert resolve(WorkerConfig, ["--port", "1", "a/model"], {}).model == "a/model"
    assert resolve(WorkerConfig, ["a/model", "--port", "1"], {"MODEL": "b"}).model == "a/model"
    for argv, said in (
        (["one", "--model", "two"], "--model: the model is given twice, one and two"),
        (["one", "two"], "unknown argument two"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(WorkerConfig, argv, {})
        assert caught.value.message == said


def test_a_misspelt_variable_is_named_and_those_of_other_roles_are_not() -> None:
    said = message([], {"TRIPTYCH_MAX_NUM_SEQ": "3"})
    assert said == "unknown variable TRIPTYCH_MAX_NUM_SEQ; did you mean TRIPTYCH_MAX_NUM_SEQS?"
    others = {"TRIPTYCH_NAMESPACE": "a", "TRIPTYCH_BREAKER_COOLDOWN": "3", "MAX_NUM_SEQ": "x"}
    assert resolve(Config, [], others) == Config()


@pytest.mark.parametrize("variable", ["PROXY_PORT", "TRIPTYCH_PORT"])
def test_the_address_of_a_kubernetes_service_is_passed_over_with_a_line(
    variable: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert resolve(Config, [], {variable: "tcp://10.0.0.1:80"}).port == 8000
    assert [record.getMessage().split()[0] for record in caplog.records] == [variable]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- port", "no mapping"),
        ("port: [1", "line 1"),
        ("prot: 1", "did you mean port"),
        ("port: 1\nport: 2", "line 2: port is given twice"),
        ("port:", "nothing is not a whole number"),
        ("mode: [on]", "is not text"),
    ],
)
def test_a_bad_file_names_the_place(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.yaml") as caught:
        resolve(Config, ["--config", str(file)], {})
    assert reason in caught.value.message


def test_words_of_yaml_are_taken_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("mode: on\neager: on\nport: 81\n")
    assert resolve(Config, ["--config", str(file)], {}) == Config(mode="on", eager=True, port=81)
    assert resolve(Config, ["--config", str(file), "--port=5"], {"PROXY_PORT": "4"}).port == 5
    assert resolve(Config, ["--config", str(file)], {"PROXY_PORT": "4"}).port == 4
