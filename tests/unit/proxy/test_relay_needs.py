"""How relayed requests are described to a master: by the workers' own block keys, and once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import RateLimited, TriptychError, Unavailable
from proxy.fleet.fleet import Fleet
from proxy.placement.own_view import OwnView
from proxy.placement.planner import Need, Plan
from proxy.relay.needs import Needs
from proxy.request_state import RequestState
from services.frontend.config import FrontendConfig
from services.frontend.render import Frontend
from services.frontend.spec import RenderedRequest
from tests.support.clients import body_of
from tests.support.conversations import asking, picture
from tests.support.listening import run
from tests.support.relay_failures import drop
from tests.support.relay_workers import relaying
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


async def test_a_description_holds_as_long_as_the_fleet_serves_the_model_by_that_name(
    frontend: Frontend,
) -> None:
    """A request that waits for the first worker is not described without its keys for ever."""
    known = fleet("another")
    needs, request = Needs(known, frontend), relayed(chat("Hello " * 40, model="vllm/demo"))
    assert (await needs.of(request)).predicted and not request.exact
    known.decode[0].model = "vllm/demo"
    found = await needs.of(request)
    assert not found.predicted and request.exact
    known.decode[0].revision = "r2"
    assert (await needs.of(request)).keys(16) != found.keys(16)


@pytest.mark.parametrize("name", ["demo", "another"])
async def test_the_first_attempts_need_is_the_one_that_is_kept(
    frontend: Frontend, name: str
) -> None:
    """Rendered or not: a copy takes seven microseconds."""
    needs, request = Needs(fleet("vllm/demo", "another"), frontend), relayed(chat("Hi", model=name))
    first = await needs.of(request)
    assert request.description is not None and first is request.description.need
    again = await needs.of(request)
    assert again == replace(first, request_id=again.request_id) != first


class Counting(Frontend):
    renders = 0

    async def render_chat(self, *given: Any, **more: Any) -> RenderedRequest:
        self.renders += 1
        return await super().render_chat(*given, **more)


class Scripted(OwnView):
    """In a master's place: refuses as it is told, in order, then places."""

    asks = True

    def __init__(self, alone: OwnView, script: list[TriptychError | None]) -> None:
        super().__init__(alone._fleet, alone.admission)
        self._script = script
        self.needs: list[Need] = []

    async def place(self, state: RequestState, need: Need) -> Plan:
        self.needs.append(need)
        if self._script and (error := self._script.pop(0)) is not None:
            raise error
        return await super().place(state, replace(need, predicted=False))


@pytest.mark.parametrize("rendering", [True, False])
@pytest.mark.parametrize("media", [False, True])
def test_a_request_is_rendered_once_for_all_attempts_and_while_it_waits(
    frontend: Frontend, media: bool, rendering: bool
) -> None:
    """The first worker drops the request, and the master has no room at once for another try."""
    counting = Counting(frontend.config, frontend.info, frontend.tokenizer, frontend.family)
    refusals: list[TriptychError | None] = [None, Unavailable("full"), RateLimited("full"), None]
    planners: list[Scripted] = []

    def planning(alone: OwnView) -> Scripted:
        planners.append(Scripted(alone, refusals))
        return planners[0]

    async def work() -> None:
        known = counting if rendering else None
        async with relaying("D", planning=planning, frontend=known) as proxy:
            proxy.workers["decode"][0].script = [drop]
            body = body_of(asking("What is it?", *[picture(1)] * media))
            assert (await proxy.post({**body, "model": "demo"}))[0] == 200
            assert len(proxy.workers["decode"][0].asked) == 2
        await counting.close()

    run(work)
    needs = planners[0].needs
    assert len(needs) >= 4 and counting.renders == rendering
    assert len({need.request_id for need in needs}) == len(needs), "each attempt has its own id"
    first, *others = needs
    assert all(need.keys(4) is first.keys(4) and need.items is first.items for need in others)
    assert first.predicted is not rendering and len(first.items) == (media and rendering)
