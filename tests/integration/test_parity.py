"""Through the real processes and the real proxy: the tokens of transformers' `generate()`, for
each family that is not asked in every topology (test_parity_topologies.py)."""

from collections.abc import Iterator

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens
from tests.support.tiny_models import FAMILIES
from tests.support.topologies import (
    EPD,
    EVERYWHERE,
    TOKENS,
    Topologies,
    check_loaded_parts,
    topologies_of,
)


@pytest.fixture(scope="module", params=[name for name in FAMILIES if name not in EVERYWHERE])
def topologies(request: pytest.FixtureRequest, model_dir: ModelDir) -> Iterator[Topologies]:
    with topologies_of(model_dir(request.param)) as started:
        yield started


def test_tokens_equal_generate(topologies: Topologies) -> None:
    """All cases at the same moment, twice: the second time out of every cache."""
    server = topologies.server(EPD)
    for _ in range(2):
        served = all_tokens(server, topologies.cases, max_tokens=TOKENS, ignore_eos=True)
        assert served == topologies.expected


def test_every_role_loads_only_its_part(topologies: Topologies) -> None:
    topologies.server(EPD)
    check_loaded_parts(topologies)
