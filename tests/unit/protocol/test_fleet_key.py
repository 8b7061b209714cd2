"""The fleet's secret as processes are told it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.curve import Curve
from protocol.errors import ConfigError, Unauthorized
from protocol.fleet_key import HEADER, FleetKey, FleetOptions, no_fleet_key, refuses_key
from protocol.server_options import ClientKeyOptions
from protocol.settings import describe, resolve

KEY = "a key that is long enough".replace(" ", "-")


@dataclass(frozen=True)
class Config(FleetOptions):
    pass


def given(*flags: str, **environ: str) -> FleetKey:
    return resolve(Config, flags, environ).read_fleet_key()


def test_the_key_comes_from_a_flag_a_variable_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"# of the fleet\n\n{KEY}\n")
    assert given("--fleet-key", KEY).admits(KEY.encode())
    assert given(TRIPTYCH_FLEET_KEY=KEY) == FleetKey(KEY)
    assert given("--fleet-key-file", str(path)) == FleetKey(KEY)
    assert given(TRIPTYCH_FLEET_KEY_FILE=str(path)) == FleetKey(KEY)
    assert not given()


@pytest.mark.parametrize("text", ["short", "with spaces in the middle", "ümlaut-ümlaut-ümlaut",
                                  "a" * 2000, "line\r\nbreak-in-a-header"])  # fmt: skip
def test_what_makes_no_key_is_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        given("--fleet-key", text)
    assert "--fleet-key" in caught.value.message and text not in caught.value.message
    if "\n" not in text:
        (tmp_path / "key").write_text(text)
        with pytest.raises(ConfigError, match="--fleet-key-file"):
            given("--fleet-key-file", str(tmp_path / "key"))


def test_a_file_that_is_no_keys_file_is_refused(tmp_path: Path) -> None:
    empty, two = tmp_path / "empty", tmp_path / "two"
    empty.write_text("\n")
    two.write_text(f"{KEY}\n{KEY}2\n")
    for path, reason in ((tmp_path / "none", "No such file"), (empty, "no key"), (two, "more")):
        with pytest.raises(ConfigError, match=f"--fleet-key-file.*{reason}"):
            given("--fleet-key-file", str(path))
    with pytest.raises(ConfigError, match="give one"):
        given("--fleet-key", KEY, "--fleet-key-file", str(two))


def test_the_log_at_start_does_not_show_it() -> None:
    shown = describe(resolve(Config, ["--fleet-key", KEY], {}))
    assert "fleet_key = 'set'" in shown and KEY not in shown
    assert KEY not in repr(FleetKey(KEY))


def test_no_key_admits_nothing_but_itself() -> None:
    key = FleetKey(KEY)
    assert not any(map(key.admits, (b"", b"x", KEY[:-1].encode(), f"{KEY}x".encode(), b"\xff")))


def test_keys_of_zmq_are_the_fleets_and_tell_nothing_of_it() -> None:
    ours, again, other = (Curve.of(FleetKey(k)) for k in (KEY, KEY, KEY + "2"))
    assert ours == again and ours != other and ours is not None
    assert Curve.of(FleetKey()) is None
    assert KEY not in repr(ours) and ours.secret.decode() not in repr(ours)


def test_api_keys_may_be_given_one_by_one() -> None:
    flags = ["--api-key", "one,two", "--api-key", "three"]
    assert resolve(ClientKeyOptions, flags, {}).read_api_keys() == ["one", "two", "three"]
    assert resolve(ClientKeyOptions, [], {"TRIPTYCH_API_KEY": "one,two"}).read_api_keys() == [
        "one",
        "two",
    ]
    with pytest.raises(ConfigError, match="--api-key"):
        resolve(ClientKeyOptions, ["--api-key", "good", "--api-key", "no good"], {})


@pytest.mark.parametrize(
    ("status", "content", "refused"),
    [
        (401, no_fleet_key().to_openai(), True),
        (403, no_fleet_key().to_openai(), False),
        (401, Unauthorized("another").to_openai(), False),
        (401, {"error": "x"}, False),
        (401, [], False),
        (401, {}, False),
    ],
)
def test_a_refusal_of_the_key_is_known(status: int, content: object, refused: bool) -> None:
    assert refuses_key(status, content) is refused


def test_only_a_key_is_sent_along() -> None:
    assert dict(FleetKey(KEY).headers) == {HEADER: KEY}
    assert not FleetKey("").headers


def test_no_key_is_shown_where_an_object_is() -> None:
    curve = Curve.of(FleetKey(KEY))
    assert curve is not None and Curve.of(FleetKey("")) is None
    shown = repr(curve) + repr(FleetKey(KEY))
    assert not any(secret in shown for secret in (KEY, repr(curve.secret), repr(curve.public)))


def test_a_key_has_16_to_1024_characters() -> None:
    for length in (16, 1024):
        assert given("--fleet-key", "k" * length)
    for length in (15, 1025):
        with pytest.raises(ConfigError):
            given("--fleet-key", "k" * length)
