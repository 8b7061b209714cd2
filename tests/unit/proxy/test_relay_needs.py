"""Which relayed requests are described to a master by the workers' own block keys."""

from pathlib import Path

import pytest

from proxy.fleet.fleet import Fleet
from proxy.relay.needs import Needs
from services.frontend.config import FrontendConfig
from services.frontend.render import Frontend
from tests.unit.proxy.test_message_keys import chat, relayed

DEMO = Path("models/demo")


@pytest.fixture(scope="module")
def frontend() -> Frontend:
    return Frontend.load(FrontendConfig(model=DEMO, served_model_names=("demo",)))


def fleet(*models: str) -> Fleet:
    """Decode workers of these models, the first with an alias and an adapter."""
    made = Fleet()
    for number, model in enumerate(models):
        worker = made.add(f"http://127.0.0.1:{number + 1}", "decode")
        worker.model, worker.block_size = model, 16
        worker.aliases = frozenset({"nick"} if not number else ())
        worker.models = worker.aliases | {model, "adapter"}
    return made


@pytest.mark.parametrize("name", ["demo", "vllm/demo", "nick", None])
async def test_every_name_of_the_model_is_asked_for_by_exact_keys(
    frontend: Frontend, name: str | None
) -> None:
    needs = Needs(fleet("vllm/demo"), frontend)
    found = await needs.of(relayed(chat("What is this? " * 20, model=name)))
    assert not found.predicted
    own = await needs.of(relayed(chat("What is this? " * 20, model="demo")))
    assert found.keys(16) == own.keys(16) and len(own.keys(16)) > 2


async def test_an_adapter_has_kv_of_its_own(frontend: Frontend) -> None:
    needs = Needs(fleet("vllm/demo"), frontend)
    assert (await needs.of(relayed(chat("Hello", model="adapter")))).predicted


async def test_with_two_models_behind_the_proxy_an_alias_says_nothing(frontend: Frontend) -> None:
    needs = Needs(fleet("vllm/demo", "another"), frontend)
    assert (await needs.of(relayed(chat("Hello", model="nick")))).predicted
    assert not (await needs.of(relayed(chat("Hello", model="demo")))).predicted
