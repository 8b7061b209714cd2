"""The socket by which a stack is asked to restart."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from protocol.errors import ConfigError
from triptych.launch.control import NAME, Answer, Control, Progress, Restart, ask
from triptych.launch.restart import parse_roles


def echo(asked: Restart, answer: Answer) -> None:
    for role in asked.roles:
        answer(Progress(role))
    answer(Progress(status=0))


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    monkeypatch.setattr("triptych.launch.control._ASK_S", 30.0)
    with contextlib.closing(Control(Path(), echo)) as made:
        yield made


def test_who_asks_is_told_each_step_and_the_end(control: Control) -> None:
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            control.look()

    watching = threading.Thread(target=watch)
    watching.start()
    said = list(ask(Path(), Restart(["encode", "decode"], 1.0)))
    over.set()
    watching.join()
    assert [(each.line, each.status) for each in said] == [
        ("encode", None), ("decode", None), ("", 0),
    ]  # fmt: skip


def test_only_what_a_caller_sends_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(asked: Restart, answer: Answer) -> None:
        raise FileNotFoundError("a log is gone")

    monkeypatch.chdir(tmp_path)
    with contextlib.closing(Control(Path(), fail)) as made:
        with calling(b"nonsense\n"):
            made.look()
        with calling(msgspec.json.encode(Restart([], 1.0))), pytest.raises(FileNotFoundError):
            made.look()


@contextlib.contextmanager
def calling(line: bytes) -> Iterator[None]:
    """One who has sent this, and waits."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(NAME)
        link.sendall(line)
        yield


def test_only_its_user_may_ask(control: Control) -> None:
    assert Path(NAME).stat().st_mode & 0o077 == 0


def test_a_second_stack_needs_a_folder_of_its_own(control: Control) -> None:
    with pytest.raises(ConfigError, match="--log-path: another stack"):
        Control(Path(), echo)


def test_what_a_dead_stack_has_left_is_no_hindrance(control: Control) -> None:
    control._socket.close()
    Control(Path(), echo).close()
    assert not Path(NAME).exists()


def test_too_long_a_path_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--log-path: .* is too long"):
        Control(tmp_path / ("long" * 30), echo)


def test_roles_come_in_the_order_of_a_restart() -> None:
    assert parse_roles("proxy, encode") == ["encode", "proxy"]
    with pytest.raises(ConfigError, match="--roles: 'decoder' is not one of encode, prefill"):
        parse_roles("decoder")
