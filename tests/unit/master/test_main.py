"""What a master logs of its configuration."""

import pytest

from services.master.__main__ import _without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", ""),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://user:secret@h:6379", "redis://***@h:6379"),
        ("redis://h:6379?password=secret", "redis://h:6379?password=***"),
        ("redis://h?pass%77ord=secret&db=1", "redis://h?password=***&db=1"),
        ("redis://h?password=sec#ret", "redis://h?password=***"),
        (
            "rediss://u:secret@h?ssl_password=secret&ssl_keyfile=/etc/key.pem",
            "rediss://***@h?ssl_password=***&ssl_keyfile=/etc/key.pem",
        ),
    ],
)
def test_a_redis_url_is_shown_without_its_passwords(url: str, shown: str) -> None:
    assert _without_password(url) == shown
