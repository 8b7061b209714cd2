"""Settings of the proxy that do not go together."""

from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.settings import resolve
from proxy.__main__ import main
from proxy.config import ProxyConfig


@pytest.mark.parametrize(
    "flags", [(), ("--video-timeout", "9.5"), ("--no-allow-clips",), ("--dialect", "openai")]
)
def test_a_clip_is_read_within_one_call_of_an_encode_worker(flags: tuple[str, ...]) -> None:
    call = "10" if flags else "60"
    resolve(ProxyConfig, ["--encode-timeout", call, *flags], {}).check_timeouts()


@pytest.mark.parametrize("seconds", ["10", "20"])
def test_a_clip_that_may_take_longer(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--encode-timeout", "10", "--video-timeout", seconds]
    with pytest.raises(ConfigError, match=r"--video-timeout: .* below --encode-timeout, 10 s"):
        resolve(ProxyConfig, flags, {}).check_timeouts()
    assert main(flags) == 2
    assert "--video-timeout" in capsys.readouterr().err


def config(*flags: str) -> ProxyConfig:
    return resolve(ProxyConfig, flags, {})


def test_each_model_has_its_names(tmp_path: Path) -> None:
    a, b = tmp_path / "a,a", tmp_path / "b"
    for path in (a, b):
        path.mkdir()
    flags = ("--model", str(a), "--model", str(b))
    named = config(*flags, "--served-model-name", "x, y", "--served-model-name", "z")
    assert [(one.model, one.names) for one in named.to_configs()] == [(a, ("x", "y")), (b, ("z",))]
    (_, other) = config(*flags, "--served-model-name", "x").to_configs()
    assert other.names == (str(b),)
    environ = {"MODEL": f"{a};{b}", "TRIPTYCH_SERVED_MODEL_NAME": ";z"}
    told = resolve(ProxyConfig, [], environ).to_configs()
    assert [one.names for one in told] == [(str(a),), ("z",)]
    (one,) = config("--model", str(a), "--served-model-name", "x,y").to_configs()
    assert (one.model, one.names) == (a, ("x", "y"))


def test_names_of_more_models_than_there_are(tmp_path: Path) -> None:
    named = ("--served-model-name", "x", "--served-model-name", "y")
    with pytest.raises(ConfigError, match="it names 2 models, but --model is 1"):
        config("--model", str(tmp_path), *named).to_configs()


def test_workers_of_several_models_speak_tokens() -> None:
    two = ("--model", "a", "--model", "b")
    assert config(*two).with_dialect().dialect == "tokens"
    assert config(*two, "--dialect", "openai").with_dialect().dialect == "openai"
    assert config("--model", "a").with_dialect().dialect == "auto"
