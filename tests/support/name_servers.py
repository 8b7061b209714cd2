"""Host names without a network."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PUBLIC = "93.184.216.34"


class Names:
    """A name server that lets names under `.slow` wait until it is told to go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.asked: list[str] = []

    def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        if host.endswith(".slow"):
            self.go_on.wait(60)
            raise socket.gaierror("no such host")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (PUBLIC, port))]

    @property
    def slow(self) -> int:
        return sum(host.endswith(".slow") for host in self.asked)


@contextmanager
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """In place of the system's, for media."""
    server = Names()
    monkeypatch.setattr("services.frontend.media.lookups.socket.getaddrinfo", server.getaddrinfo)
    yield server
    server.go_on.set()
