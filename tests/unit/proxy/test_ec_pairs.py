"""A proxy without a master sends pictures only where their embeddings can be read."""

import asyncio

import msgspec
import pytest

from protocol.errors import Unavailable
from protocol.generate import decode_encode
from protocol.generate_answers import EncodeAnswer
from protocol.types import EncodeOutput, MMItem
from proxy.fleet.fleet import Fleet
from proxy.fleet.own_model import OwnModel, OwnModels
from proxy.placement.own_view import by_load
from proxy.placement.planner import ModelNames
from proxy.tokens.pipeline import PipelineModel
from tests.support.scripted_workers import Worker, asking, before
from tests.support.waiting import eventually
from tests.unit.proxy.test_fleet_log import ec_fleet

TURNS = 12
PICTURE = MMItem("x", "image", 0, 1)


def pairs(fleet: Fleet, most: int = 4) -> set[tuple[str, str]]:
    """(worker that reads the embeddings, worker that decodes)"""
    plans = [by_load(fleet, most, (), media=True) for _ in range(TURNS)]
    return {((p.prefill or p.decode).url[7:9], p.decode.url[7:9]) for p in plans}


def test_prefill_workers_that_can_read_none_get_no_pictures() -> None:
    fleet = ec_fleet(e1="shm", p1="shm", p2="nixl", d1="shm", d2="nixl")
    assert pairs(fleet) == {("p1", "d1"), ("p1", "d2")}
    prefill = {plan.prefill.url for _ in range(TURNS) if (plan := by_load(fleet, 4, ())).prefill}
    assert len(prefill) == 2, "text goes to both"


def test_decode_does_it_all_if_only_it_can_read() -> None:
    fleet = ec_fleet(e1="shm", p1="nixl", d1="shm", d2="nixl")
    assert pairs(fleet) == {("d1", "d1")}


def test_a_request_of_one_token_goes_to_prefill_where_decode_cannot_read() -> None:
    fleet = ec_fleet(e1="shm", p1="shm", d1="nixl")
    assert pairs(fleet, 1) == {("p1", "d1")}


def test_where_none_can_read_the_refusal_names_the_flag() -> None:
    fleet = ec_fleet(e1="nixl", p1="shm", d1="shm")
    with pytest.raises(Unavailable, match="--ec-transfer-config") as caught:
        by_load(fleet, 4, (), media=True)
    assert (caught.value.code, caught.value.retry_after_s) == ("incompatible_peer", 1.0)
    by_load(fleet, 4, ())
    fleet.encode[0].up = False
    assert pairs(fleet) == {("p1", "d1")}, "without any encoder another refusal is due"


def test_an_encoder_is_chosen_by_who_is_to_read_it() -> None:
    fleet = ec_fleet(e1="nixl", e2="shm", e3="", p1="shm", d1="shm")
    names = [f"hash{number}" for number in range(40)]
    assert {fleet.by_content(name, (), reader="shm").url[7:9] for name in names} == {"e2", "e3"}
    assert fleet.by_content("x", fleet.encode[1:], reader="shm") in fleet.encode[1:]
    assert {fleet.by_content(name).url[7:9] for name in names} == {"e1", "e2", "e3"}
    with pytest.raises(Unavailable, match="--ec-transfer-config"):
        ec_fleet(e1="nixl", p1="shm").by_content("x", (), reader="shm")


def encoder(sent: list[bytes | None]) -> Worker:
    """Notes what it is sent of each item."""

    async def encode(body: bytes) -> bytes:
        asked = decode_encode(body)
        sent.extend(item.data for item in asked.items)
        output = EncodeOutput(asked.request_id, PICTURE.mm_hash, {})
        return msgspec.json.encode(EncodeAnswer([output]))

    return Worker(encode=encode)


async def test_one_picture_is_encoded_once_for_each_kind_of_reader() -> None:
    """Requests whose workers read from one encoder share what it is sent; others do not."""
    sent: dict[str, list[bytes | None]] = {"shm": [], "nixl": []}
    encode, decode = [encoder(some) for some in sent.values()], {kind: Worker() for kind in sent}
    async with before(encode=encode, decode=[*decode.values()]) as stack:
        for group in (stack.fleet.encode, stack.fleet.decode):
            for instance, kind in zip(group, sent, strict=True):
                instance.ec_compatibility = kind
        stage = stack.gateway.pipeline.stages.encode_stage
        for turn in range(4):
            request = asking(f"r{turn}", mm_items=[PICTURE])
            async for _ in stack.gateway.pipeline.run(request, {"x": b"picture"}):
                pass
            await eventually(lambda: not stage.busy)
    assert [len(worker.calls) for worker in decode.values()] == [2, 2]
    assert sent == {"shm": [b"picture", None], "nixl": [b"picture", None]}


async def test_one_picture_is_encoded_once_for_each_model() -> None:
    """Two models of the same weights name it alike; each has encoders of its own."""
    sent: dict[str, list[bytes | None]] = {"a": [], "b": []}
    own = OwnModels(*(OwnModel((name,)) for name in sent))
    encode, decode = [encoder(some) for some in sent.values()], [Worker(), Worker()]
    async with before(encode=encode, decode=decode, own=own) as stack:
        for group in (stack.fleet.encode, stack.fleet.decode):
            for instance, name in zip(group, sent, strict=True):
                instance.model, instance.models = name, frozenset((name,))
        stack.fleet.news()
        pipeline = stack.gateway.pipeline

        async def ask(name: str, turn: int) -> None:
            request = asking(f"{name}{turn}", mm_items=[PICTURE])
            model = PipelineModel(ModelNames(name, alone=False))
            async for _ in pipeline.run(request, {"x": b"picture"}, model=model):
                pass

        for turn in range(2):
            await asyncio.gather(*(ask(name, turn) for name in sent))
            await eventually(lambda: not pipeline.stages.encode_stage.busy)
    assert [len(worker.calls) for worker in decode] == [2, 2]
    assert sent == {"a": [b"picture", None], "b": [b"picture", None]}
