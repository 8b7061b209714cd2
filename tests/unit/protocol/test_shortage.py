"""Who a failed call tells of."""

import errno
import socket

import pytest

from protocol.errors import is_own_shortage
from tests.support.shortage import no_files_left


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_a_shortage_is_our_own(number: int) -> None:
    assert is_own_shortage(OSError(number, ""))


@pytest.mark.parametrize("number", [errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH])
def test_a_refusal_is_the_others(number: int) -> None:
    assert not is_own_shortage(OSError(number, ""))
    assert not is_own_shortage(TimeoutError()) and not is_own_shortage(None)


def test_a_name_that_cannot_be_looked_up_without_files_is_our_own() -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert not is_own_shortage(unknown)
    with no_files_left():
        assert is_own_shortage(unknown)
