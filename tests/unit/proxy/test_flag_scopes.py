"""Every flag of the proxy says for which dialect it acts, and whether a master takes its place."""

import dataclasses
import gc

import pytest

from protocol.settings import flag_of, resolve
from proxy.__main__ import main
from proxy.config import ProxyConfig
from proxy.flag_scopes import SCOPES
from scripts.references import flags_page


def names() -> set[str]:
    return {field.name for field in dataclasses.fields(ProxyConfig)}


def test_each_flag_has_a_scope_and_each_scope_a_flag() -> None:
    assert set(SCOPES) == names()


def test_the_help_says_what_does_not_hold_for_both_dialects_or_beside_a_master(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100000")
    with pytest.raises(SystemExit):
        resolve(ProxyConfig, ["--help"], {}, prog="proxy")
    shown = capsys.readouterr().out
    _, _, page = flags_page().partition("## triptych proxy")
    lines = page.partition("\n## ")[0].splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    for name, scope in SCOPES.items():
        assert scope.sentence == "" or scope.sentence.endswith("."), name
        restricted = scope.dialect != "both" or scope.alone
        assert scope.sentence or not restricted, name
        assert scope.sentence in rows[flag_of(name)]
        (line,) = [one for one in shown.splitlines() if f"TRIPTYCH_{name.upper()}]" in one]
        assert scope.sentence in line
    assert "In the tokens dialect only." in rows["--video-fps"]
    assert "No effect while a master answers" in rows["--max-queue"]


def test_other_processes_with_the_same_option_say_nothing_of_dialects() -> None:
    before, _, rest = flags_page().partition("## triptych proxy")
    _, _, after = rest.partition("\n## ")
    assert not any("the tokens dialect" in page for page in (before, after))


def test_a_model_is_not_read_where_it_would_have_no_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--dialect openai` starts beside a `--model` that is not there, as the help says."""
    flags = ["--model", "/nowhere", "--port", "0"]
    assert main(flags) == 2 and "--model" in capsys.readouterr().err
    assert main([*flags, "--dialect", "openai"]) == 2
    assert "--decode-servers-urls: at least one worker" in capsys.readouterr().err
    # A process that ends closes no sessions: asyncio says so here, not in another test's log.
    gc.collect()
