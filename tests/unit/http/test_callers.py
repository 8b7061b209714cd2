"""Who asks, by what a request's headers say."""

import pytest

from services.http.callers import tenant_of

SPELLED = [b"Bearer K", b"bearer K", b"BEARER   K ", b" Bearer K", b"K", b" K "]


@pytest.mark.parametrize("header", SPELLED)
def test_one_key_is_one_tenant_however_it_is_written(header: bytes) -> None:
    assert tenant_of(header) == tenant_of(b"K") != tenant_of(b"k")


def test_no_key_names_no_tenant() -> None:
    assert tenant_of(b"") == tenant_of(b"Bearer ") == tenant_of(b"  ") == ""


def test_other_schemes_are_keys_of_their_own() -> None:
    assert len({tenant_of(one) for one in (b"K", b"Basic K", b"Bearer Basic K", b"BearerK")}) == 3
