"""What several tests of connectors are given."""

from collections.abc import Iterator

import pytest

from tests.support.links import PACKAGES, Link, linked


@pytest.fixture(scope="module", params=list(PACKAGES))
def link(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Link]:
    """One pair of engines for a module, which must still work at its end."""
    with linked(request.param, tmp_path_factory.mktemp("link")) as link:
        link.works()
        yield link
        link.works()
