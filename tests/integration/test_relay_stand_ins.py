"""The `openai` dialect where all workers of a stage are down: those of the other stage do both."""

import asyncio
import json

import pytest

from proxy.fleet.worker import Instance
from tests.support.listening import run
from tests.support.relay_workers import (
    WHOLE,
    Asked,
    Relayed,
    Worker,
    data_url,
    pictures,
    relaying,
    send,
    text,
)
from tests.support.waiting import eventually


def instances(relayed: Relayed, role: str) -> list[Instance]:
    return [one for one in relayed.gateway.dispatch.fleet.all() if one.role == role]


def take_down(relayed: Relayed, role: str) -> None:
    for one in instances(relayed, role):
        one.up = False


@pytest.mark.parametrize(("down", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_the_other_stage_does_both(down: str, other: str) -> None:
    async def work() -> None:
        async with relaying("EPPDD") as relayed:
            take_down(relayed, down)
            for body in (text(), pictures(data_url("A"))):
                status, answer = await relayed.post(body)
                assert status == 200 and json.loads(answer)["choices"] == WHOLE["choices"]
            assert not any(worker.asked for worker in relayed.workers[down])
            asked = [one for worker in relayed.workers[other] for one in worker.asked]
            assert len(asked) == 2 and all("kv_transfer_params" not in one.body for one in asked)

    run(work)


def test_nobody_is_left() -> None:
    async def work() -> None:
        async with relaying("PD") as relayed:
            take_down(relayed, "prefill")
            take_down(relayed, "decode")
            status, answer = await relayed.post(text())
            assert status == 503 and json.loads(answer)["error"]["code"] == "no_worker"

    run(work)


def test_kv_that_no_worker_is_left_to_take_is_given_back() -> None:
    """The prompt is computed anew where the answer is."""

    async def work() -> None:
        async with relaying("PD") as relayed:
            (prefill,) = relayed.workers["prefill"]

            async def alone(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
                take_down(relayed, "decode")
                kv = {"kv_transfer_params": {"remote_request_id": "held"}}
                await send(writer, json.dumps({**WHOLE, **kv}).encode())

            prefill.script = [alone]
            status, answer = await relayed.post(text())
            assert status == 200 and json.loads(answer)["choices"] == WHOLE["choices"]
            assert len(prefill.asked) == 2
            assert "kv_transfer_params" not in prefill.asked[1].body
            await eventually(lambda: prefill.aborted == ["held"])

    run(work)


def test_kv_goes_to_a_worker_that_can_take_it() -> None:
    async def work() -> None:
        async with relaying("PDD") as relayed:
            (prefill,) = instances(relayed, "prefill")
            first, second = instances(relayed, "decode")
            prefill.kv_compatibility = second.kv_compatibility = "a"
            first.kv_compatibility = "b"
            for _ in range(4):
                assert (await relayed.post(text()))[0] == 200
            counts = {worker.url: len(worker.asked) for worker in relayed.workers["decode"]}
            assert counts == {first.url: 0, second.url: 4}

    run(work)
