"""What tests of the HTTP routes share."""

import pytest

from services.frontend.render import Frontend
from tests.support.frontend_helpers import frontend, write_model


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    return frontend(write_model("qwen2_5_vl", tmp_path_factory.mktemp("model") / "m"))
