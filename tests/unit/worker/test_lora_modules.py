"""`--lora-modules`: names and folders."""

import pytest

from protocol.errors import ConfigError
from services.worker.engine_options import parse_modules


def test_names_and_folders() -> None:
    assert parse_modules("") == {}
    assert parse_modules("a=/x, b = /y=z ,") == {"a": "/x", "b": "/y=z"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a", "form name=folder"),
        ("=x", "form"),
        ("a=", "form"),
        ("a=x,a=y", "twice"),
        ("n" * 257 + "=x", "length <= 256"),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"--lora-modules: .*{why}"):
        parse_modules(text)
