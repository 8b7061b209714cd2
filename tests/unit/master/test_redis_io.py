"""What masters read from a Redis, and what a URL that is none is answered with."""

import pytest

from protocol.errors import ConfigError
from services.master.replication.redis_io import check_redis_url, connected, scan, values
from tests.support.redis_server import RedisServer


@pytest.mark.parametrize(
    "url",
    [
        "redis://:sec/ret@h:6379",
        "redis://user:sec?ret@h:6379/0",
        "redis://user:sec?ret=1@h:6379",
        "redis://:sec#ret@h:6379",
        "redis://:sec[ret@h:6379",
        "redis://:sec\N{FULLWIDTH SOLIDUS}ret@h",
        "redis://:12/sec@h",
        "redis://:12?sec@h",
        "redis://:12?sec=1@h",
        "unix://user:sec/ret@/run/redis.sock",
        "redis://:sec@h:port",
    ],
)
def test_an_error_says_how_to_escape_a_password_and_not_what_it_is(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_redis_url(url)
    assert error.value.message.startswith("--redis-url: ") and "%2F" in error.value.message
    assert "sec" not in error.value.message and "ret" not in error.value.message


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:sec%2Fret@h:6379/0",
        "redis://h?password=sec/r@t&db=1",
        "unix:///run/a@b.sock?db=1",
    ],
)
def test_escaped_passwords_are_taken(url: str) -> None:
    check_redis_url(url)


def test_errors_of_other_urls_name_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="no_such_option"):
        check_redis_url("redis://:secret@h?no_such_option=1")
    with pytest.raises(ConfigError, match=r"'abc'$"):
        check_redis_url("redis://h:abc")


async def test_values_are_read_with_their_names_and_what_is_left_of_them() -> None:
    """Of a key that is gone nothing; of one that holds no string an empty value."""
    server = RedisServer()
    try:
        server.client.set("p:a", b"one", px=60_000)
        server.client.set("p:b", b"two")
        server.client.hset("p:c", "field", "value")
        server.client.set("other", b"three")
        async with connected(server.url) as client:
            named = [name async for some in scan(client, "p:", 10) for name in some]
            assert sorted(named) == ["p:a", "p:b", "p:c"]
            assert [len(some) async for some in scan(client, "p:", 2)] == [2]
            found = await values(client, ["p:a", "p:gone", "p:b", "p:c"])
        assert [(name, value) for name, value, _ in found] == [
            ("p:a", b"one"), ("p:b", b"two"), ("p:c", b""),
        ]  # fmt: skip
        assert 0 < found[0][2] <= 60_000 and [left for *_, left in found[1:]] == [-1, -1]
    finally:
        server.close()
