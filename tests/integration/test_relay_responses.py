"""Stored responses behind a relaying proxy: asked of the worker that has them."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from proxy.relay.passed_routes import STORED
from tests.support.listening import run
from tests.support.relay_workers import DONE, Asked, Relayed, Worker, begin, chunk, relaying, send

RESPONSES = "/v1/responses"
LOST = b'{"error":{"message":"Response with id not found.","code":404}}'
LACKING = b'{"detail":"Not Found"}'
NO_METHOD = b'{"detail":"Method Not Allowed"}'
OTHER = {"authorization": "Bearer other"}


@dataclass
class Storing(Worker):
    """Numbers its responses; knows them by their ids."""

    lacks: bool = False  # whether it has no routes for stored responses
    deletes: bool = False  # vLLM does not
    sick: bool = False
    held: set[str] = field(default_factory=set)

    async def respond(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        name = asked.path.removeprefix(f"{RESPONSES}/").partition("/")[0].partition("?")[0]
        if self.sick:
            await send(writer, b"{}", status=500)
            return
        if asked.path != RESPONSES:
            if asked.method == "DELETE" and not self.deletes:
                await send(writer, NO_METHOD, status=405)
            elif name in self.held:
                await send(writer, b"{}")
            else:
                await send(writer, LACKING if self.lacks else LOST, status=404)
            return
        name = f"resp_{len(self.held)}-{self.url.rpartition(':')[2]}"
        self.held.add(name)
        if not (asked.body or {}).get("stream"):
            await send(writer, json.dumps({"id": name}).encode())
            return
        await begin(writer)
        told = {"type": "response.created", "response": {"id": name, "output": [{"id": "msg"}]}}
        await chunk(writer, b"data: %b\n\n" % json.dumps(told).encode())
        await chunk(writer, DONE)
        writer.write(b"0\r\n\r\n")


def workers_of(relayed: Relayed) -> list[Storing]:
    return [one for one in relayed.workers["decode"] if isinstance(one, Storing)]


async def ask(relayed: Relayed, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with relayed.session.request(method, relayed.url + path, **more) as response:
        return response.status, await response.json(content_type=None)


async def made(relayed: Relayed, **body: Any) -> tuple[str, Storing]:
    """A new response, and the worker that has it."""
    before = {name for worker in workers_of(relayed) for name in worker.held}
    status, _ = await relayed.post({"input": "x", **body}, path=RESPONSES)
    assert status == 200
    ((name, worker),) = [(n, w) for w in workers_of(relayed) for n in w.held - before]
    return name, worker


def test_the_worker_that_answered_is_asked() -> None:
    async def work() -> None:
        async with relaying("DDD", kind=Storing) as relayed:
            some = [await made(relayed, stream=stream) for stream in (False, True) * 3]
            assert len({worker.url for _, worker in some}) == 3
            for worker in workers_of(relayed):
                worker.deletes = True
            for name, worker in some:
                for route in STORED:
                    path = route.path.format(response_id=name) + "?include=x"
                    assert (await ask(relayed, route.method, path))[0] == 200
                    assert worker.asked[-1].path == path
            assert relayed.in_flight == 0

    run(work)


def test_a_response_goes_on_where_the_one_before_is() -> None:
    async def work() -> None:
        async with relaying("DDD", kind=Storing) as relayed:
            name, first = await made(relayed)
            for _ in range(4):
                name, worker = await made(relayed, previous_response_id=name)
                assert worker is first

    run(work)


def test_a_response_that_another_proxy_relayed_is_looked_for() -> None:
    async def work() -> None:
        async with relaying("DDD", kind=Storing) as relayed:
            last = workers_of(relayed)[-1]
            last.held.add("resp_elsewhere")
            workers_of(relayed)[0].lacks = True
            assert (await ask(relayed, "GET", f"{RESPONSES}/resp_elsewhere"))[0] == 200
            status, answer = await ask(relayed, "GET", f"{RESPONSES}/resp_nowhere")
            assert (status, answer["error"]["code"]) == (404, "response_not_found")
            assert (await ask(relayed, "GET", f"{RESPONSES}/a%20b"))[0] == 404

    run(work)


def test_a_sick_worker_does_not_end_the_search() -> None:
    async def work() -> None:
        async with relaying("DD", kind=Storing) as relayed:
            sick, last = workers_of(relayed)
            sick.sick = True
            last.held.add("resp_elsewhere")
            assert (await ask(relayed, "GET", f"{RESPONSES}/resp_elsewhere"))[0] == 200
            relayed.gateway.fleet.decode[0].answered()
            assert (await ask(relayed, "GET", f"{RESPONSES}/resp_nowhere"))[0] >= 500
            assert len(sick.asked) == 2

    run(work)


def test_a_worker_that_cannot_delete_is_asked_for_its_responses() -> None:
    async def work() -> None:
        async with relaying("D", kind=Storing) as relayed:
            name, _ = await made(relayed)
            for path in (f"{RESPONSES}/{name}", f"{RESPONSES}/resp_elsewhere"):
                status, answer = await ask(relayed, "DELETE", path)
                assert status == 405 and "DELETE" in answer["error"]["message"]
            assert (await ask(relayed, "GET", f"{RESPONSES}/{name}"))[0] == 200

    run(work)


def test_several_processes_have_no_stored_responses() -> None:
    async def work() -> None:
        async with relaying("D", "--workers", "2", kind=Storing) as relayed:
            name, worker = await made(relayed)
            status, answer = await ask(relayed, "GET", f"{RESPONSES}/{name}")
            assert (status, answer["error"]["code"]) == (400, "several_processes")
            body = {"input": "x", "previous_response_id": name}
            status, said = await relayed.post(body, path=RESPONSES)
            assert (status, json.loads(said)["error"]["param"]) == (400, "previous_response_id")
            assert len(worker.asked) == 1

    run(work)


def test_an_answer_that_is_not_stored_is_not_remembered() -> None:
    async def work() -> None:
        async with relaying("D", "--api-key", "k", kind=Storing) as relayed:
            name, worker = await made(relayed, store=False)
            count = len(worker.asked)
            assert (await ask(relayed, "GET", f"{RESPONSES}/{name}"))[0] == 404
            assert len(worker.asked) == count

    run(work)


def test_a_response_is_there_for_its_client_alone() -> None:
    async def work() -> None:
        async with relaying("D", kind=Storing) as relayed:
            name, worker = await made(relayed)
            count = len(worker.asked)
            assert (await ask(relayed, "GET", f"{RESPONSES}/{name}", headers=OTHER))[0] == 404
            body = {"input": "x", "previous_response_id": name}
            assert (await relayed.post(body, OTHER, RESPONSES))[0] == 404
            assert len(worker.asked) == count
        async with relaying("D", "--api-key", "k", kind=Storing) as keyed:
            workers_of(keyed)[0].held.add("resp_anybodys")
            assert (await ask(keyed, "GET", f"{RESPONSES}/resp_anybodys"))[0] == 404
            assert not workers_of(keyed)[0].asked

    run(work)
