"""Settings of the proxy that do not go together."""

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
