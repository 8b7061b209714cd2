"""A listening socket that another process has bound."""

import os
import socket

import pytest

from protocol.errors import ConfigError
from services.http.server import bind, inherited


def test_it_listens_where_its_owner_has_bound_it() -> None:
    with bind("127.0.0.1", 0) as owner, inherited(os.dup(owner.fileno())) as taken:
        assert taken.getsockname() == owner.getsockname()
        assert taken.proto == socket.IPPROTO_TCP


def test_what_is_no_socket_is_told_by_its_flag() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(ConfigError, match=rf"--fd: {reading} is not an open socket"):
        inherited(reading)
    os.close(reading)


def test_a_socket_of_another_kind_is_refused_and_left_open() -> None:
    with socket.socket(socket.AF_UNIX) as other, socket.socket() as unbound:
        for each in (other, unbound):
            with pytest.raises(ConfigError, match="is not a bound TCP socket"):
                inherited(each.fileno())
            assert each.getsockname() is not None
