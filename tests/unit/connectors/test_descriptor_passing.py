"""Sockets that hand out memory, also after their names were removed under a running process."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.transports.descriptor_passing import DescriptorRequest, DescriptorServer
from tests.support.waiting import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DescriptorServer]:
    (tmp_path / "space").mkdir(mode=0o700)
    server = DescriptorServer(tmp_path / "space" / "region", os.memfd_create("region"))
    yield server
    server.close()


def received(path: Path) -> str:
    """What the descriptor is of that comes from `path`."""
    request, found = DescriptorRequest(path), list[int]()

    def comes() -> bool:
        if (descriptor := request.poll()) is not None:
            found.append(descriptor)
        return bool(found)

    until(comes)
    try:
        return str(Path(f"/proc/self/fd/{found[0]}").readlink())
    finally:
        os.close(found[0])


def test_a_socket_that_was_removed_is_made_again(server: DescriptorServer) -> None:
    """As systemd-logind removes those of a user that logs out, with their folder."""
    for _ in range(2):
        assert "memfd:region" in received(server.path)
        shutil.rmtree(server.path.parent)
        until(server.path.exists)
    assert "memfd:region" in received(server.path)
    assert server.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_could_have_made_is_not_used(
    server: DescriptorServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.path.parent.chmod(0o777)
    server.path.unlink()
    until(lambda: "other users can write" in caplog.text)
    assert not server.path.exists()
    server.path.parent.chmod(0o700)
    until(server.path.exists)
    assert caplog.text.count("other users can write") == 1


def test_nothing_is_left_of_one_that_closes(tmp_path: Path) -> None:
    for _ in range(20):
        server = DescriptorServer(tmp_path / "region", os.memfd_create("region"))
        server.path.unlink()
        server.close()
        assert list(tmp_path.iterdir()) == []
