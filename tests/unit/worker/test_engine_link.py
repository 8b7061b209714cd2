"""The worker's link to its engine, whose part a test plays."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from connectors.owners import OwnedFolder
from protocol.errors import ConfigError, NotServing, Unavailable
from services.engine import messages
from services.engine.config import EngineConfig
from services.engine.messages import AdapterTable, LoadAdapter
from services.worker import engine_client
from services.worker.engine_client import EngineClient
from services.worker.socket_folder import socket_folder
from tests.support.waiting import eventually

CONFIG = EngineConfig(model_dir="m", model="m", revision="r", parts=("language",))
BOUND_S = 60.0
SILENT = "import sys; sys.stdin.read()"


class Link:
    """A link that is open. `opening` ends with it, as no engine says that it is ready."""

    def __init__(self, process: asyncio.subprocess.Process, folder: OwnedFolder) -> None:
        self.adapters: list[dict[str, str]] = []
        self.client = EngineClient(process, folder, adapters_changed=self.adapters.append)
        self.opening = asyncio.create_task(self.client._open(CONFIG, BOUND_S))
        self._folder = folder.path

    def socket(self, kind: int, name: str) -> Any:
        """The engine's end of one of its sockets."""
        socket = zmq.asyncio.Context.instance().socket(kind)
        socket.linger = 0
        socket.connect(f"ipc://{self._folder}/{name}")
        return socket


@asynccontextmanager
async def link_to() -> AsyncIterator[Link]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SILENT, stdin=subprocess.PIPE
    )
    link = Link(process, socket_folder(Path(tempfile.gettempdir())))
    try:
        yield link
    finally:
        process.kill()
        await process.wait()
        await link.client.close()
        link.opening.cancel()
        await asyncio.gather(link.opening, return_exceptions=True)


@pytest.mark.parametrize("name", ["beats", "events"])
async def test_a_part_of_the_link_that_fails_ends_it(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Else stalls would go unnoticed, or requests wait for ever."""
    async with link_to() as link:
        with closing(link.socket(zmq.PUSH, name)) as engine:
            await engine.send(b"\xc1")  # no MessagePack
            with pytest.raises(NotServing, match="link to its engine failed"):
                await link.opening
        assert link.client.dead.is_set() and "the link to the engine failed" in caplog.text


async def test_adapters_that_come_late_are_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller has been told that it takes too long by then."""
    async with link_to() as link:
        with (
            closing(link.socket(zmq.PULL, "commands")) as commands,
            closing(link.socket(zmq.PUSH, "events")) as events,
        ):
            await eventually(lambda: takes_commands(link.client))
            with (
                monkeypatch.context() as patched,
                pytest.raises(Unavailable, match="did not answer in time"),
            ):
                patched.setattr(engine_client, "_LOAD_S", 0.2)
                await link.client.load_adapter("a", "/a")
            while not isinstance(
                command := messages.decode_command(await commands.recv()), LoadAdapter
            ):
                pass
            await events.send(messages.encode(AdapterTable(command.query_id, {"a": "1"})))
            await eventually(lambda: link.adapters == [{"a": "1"}])
            loading = asyncio.create_task(link.client.load_adapter("b", "/b"))
            command = messages.decode_command(await commands.recv())
            assert isinstance(command, LoadAdapter)
            await events.send(messages.encode(AdapterTable(command.query_id, {"a": "1", "b": "2"})))
            await loading
            assert link.adapters[1:] == [{"a": "1", "b": "2"}]


def takes_commands(client: EngineClient) -> bool:
    """Whether the engine's end is connected."""
    try:
        client.reset_caches()
    except Unavailable:
        return False
    return True


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name leaves room for those of sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_sockets_of_workers_that_were_killed_are_removed(short: Path) -> None:
    code = "import sys, pathlib, services.worker.socket_folder as link\n"
    code += "made = link.socket_folder(pathlib.Path(sys.argv[1]))\n"
    code += "(made.path / 'events').touch(); print(made.path, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, short],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        try:
            assert other.stdout is not None
            theirs = Path(other.stdout.readline().strip())
            socket_folder(short).close()
            assert theirs.is_dir(), "it lives"
        finally:
            other.kill()
    assert theirs.is_dir()
    with closing(socket_folder(short)) as ours:
        assert not theirs.exists() and ours.path.stat().st_mode & 0o777 == 0o700
    assert not ours.path.exists()


def test_sockets_have_names_that_the_system_takes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set TMPDIR to a shorter one"):
        socket_folder(tmp_path / ("long" * 20))


def test_sockets_are_not_made_where_another_user_may_write(tmp_path: Path) -> None:
    root = tmp_path / f"triptych-{os.getuid()}"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ConfigError, match="other users can write"):
        socket_folder(tmp_path)
