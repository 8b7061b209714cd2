"""vLLM's push mode through the relay: encoders write embeddings to the worker, and to the rank of
it, that is to compute with them."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.listening import run
from tests.support.push_workers import PushNetwork
from tests.support.relay_failures import hang, saying
from tests.support.relay_workers import (
    DONE,
    EVENTS,
    WHOLE,
    Asked,
    Relayed,
    Worker,
    data_url,
    good,
    pictures,
    relaying,
    text,
)
from tests.support.waiting import eventually

ADDRESSES = [f"tcp://127.0.0.1:{port}" for port in (7001, 7002, 7003, 7004)]
FAILED = saying(b'{"error":{"message":"push readiness event timed out"}}', status=500)


def flags(network: PushNetwork) -> tuple[str, ...]:
    return (
        "--ec-consumer-zmq-addrs", ",".join(network.addresses),
        "--ec-consumer-dp-size", str(network.ranks),
        "--encode-timeout", "10", "--decode-timeout", "10", "--first-token-timeout", "10",
    )  # fmt: skip


def under_way(relayed: Relayed) -> list[int]:
    """Requests bound to ranks, of all workers."""
    workers = relayed.gateway.fleet.decode
    return [count for worker in workers for count in worker._at_rank.values()]


async def check(relayed: Relayed, body: dict[str, Any]) -> None:
    status, answer = await relayed.post(body)
    stream = body.get("stream")
    assert status == 200, answer
    assert answer == (b"".join(EVENTS) + DONE if stream else json.dumps(WHOLE).encode())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("silent", [False, True])
def test_embeddings_are_pushed_to_the_worker_that_computes(stream: bool, silent: bool) -> None:
    """Several pictures, one of them twice. Where encoders report no metadata the picture goes to
    the consumer too, which waits for the embedding all the same."""

    async def work() -> None:
        network = PushNetwork(ADDRESSES[:1], silent=silent)
        async with relaying("EED", *flags(network), kind=network.worker) as relayed:
            body = pictures(data_url("A"), data_url("B"), data_url("A"), stream=stream)
            await check(relayed, body)
            (asked,) = relayed.workers["decode"][0].asked
            items = asked.body["ec_transfer_params"]["ec_items"]
            assert len({item["transfer_id"] for item in items}) == 3
            assert items[0]["mm_hash"] == items[2]["mm_hash"] != items[1]["mm_hash"]
            assert sum(len(worker.asked) for worker in relayed.workers["encode"]) == 3
            await check(relayed, text(stream=stream))
            assert not any(under_way(relayed))

    run(work)


def test_requests_are_spread_over_workers_and_ranks() -> None:
    async def slow(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await good(worker, asked, writer)

    async def work() -> None:
        network = PushNetwork(ADDRESSES, ranks=2)
        async with relaying("EDD", *flags(network), kind=network.worker) as relayed:
            for worker in relayed.workers["decode"]:
                worker.script = [slow] * 4
            bodies = [pictures(data_url("A"), data_url(f"{n}")) for n in range(8)]
            await asyncio.gather(*(check(relayed, body) for body in bodies))
            assert network.requests == dict.fromkeys(ADDRESSES, 2)
            assert not any(under_way(relayed))

    run(work)


def test_a_rank_that_is_busy_gets_no_more() -> None:
    async def work() -> None:
        network = PushNetwork(ADDRESSES[:2], ranks=2)
        async with relaying("ED", *flags(network), kind=network.worker) as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [hang]
            held = asyncio.create_task(relayed.post(pictures(data_url("A"))))
            await eventually(lambda: len(decode.asked) == 1)
            for _ in range(3):
                await check(relayed, pictures(data_url("A")))
            assert sorted(network.requests.values()) == [1, 3]
            held.cancel()
            await eventually(lambda: not any(under_way(relayed)))

    run(work)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("topology", ["ED", "EDD"])
def test_a_consumer_that_fails_is_tried_again_from_the_media(topology: str, stream: bool) -> None:
    """Each attempt has transfers of its own: what was pushed before may be lost."""

    async def work() -> None:
        workers = topology.count("D")
        network = PushNetwork(ADDRESSES[: 2 * workers], ranks=2)
        async with relaying(topology, *flags(network), kind=network.worker) as relayed:
            for worker in relayed.workers["decode"]:
                worker.script = [FAILED]
            await check(relayed, pictures(data_url("A"), data_url("B"), stream=stream))
            assert sum(network.requests.values()) == 1 + workers
            assert sum(len(worker.asked) for worker in relayed.workers["encode"]) == 2 + 2 * workers
            assert not any(under_way(relayed))

    run(work)


def test_a_consumer_that_fails_again_and_again_is_reported() -> None:
    async def work() -> None:
        network = PushNetwork(ADDRESSES[:1])
        more = ("--decode-retries", "1")
        async with relaying("ED", *flags(network), *more, kind=network.worker) as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [FAILED, FAILED]
            status, answer = await relayed.post(pictures(data_url("A")))
            assert status == 502 and b"push readiness" in answer
            assert len(decode.asked) == 2 and not any(under_way(relayed))

    run(work)


def test_an_encoder_that_fails_is_not_given_the_same_transfer_again() -> None:
    async def work() -> None:
        network = PushNetwork(ADDRESSES[:1])
        async with relaying("EED", *flags(network), kind=network.worker) as relayed:
            for worker in relayed.workers["encode"]:
                worker.script = [FAILED]
            await check(relayed, pictures(data_url("A")))
            assert len(network.written[ADDRESSES[0]]) == 3 and len(network.used) == 1

    run(work)


def test_a_worker_that_refuses_references_gets_the_media_with_the_transfers() -> None:
    async def work() -> None:
        network = PushNetwork(ADDRESSES[:2], ranks=2)
        async with relaying("ED", *flags(network), kind=network.worker) as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [saying(b'{"error":{"message":"unknown part"}}', status=400)]
            await relayed.post(pictures(data_url("A")))
            first, second = decode.asked
            assert first.headers["x-data-parallel-rank"] == second.headers["x-data-parallel-rank"]
            assert first.body["ec_transfer_params"] == second.body["ec_transfer_params"]
            kinds = [asked.body["messages"][0]["content"][0]["type"] for asked in decode.asked]
            assert kinds == ["image_embeds", "image_url"]

    run(work)


@pytest.mark.parametrize("role", ["prefill_decode", "prefill"])
def test_consumers_are_added_by_name(role: str) -> None:
    """A prefill worker that has addresses gets the embeddings, and the rank; decode none of it."""

    async def work() -> None:
        network = PushNetwork(ADDRESSES, ranks=2)
        apart = role == "prefill"
        worker = network.worker("decode")  # a consumer, of either stage
        server = await asyncio.start_server(worker.serve, "127.0.0.1", 0, limit=1 << 26)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        kinds = {"encode": network.worker, "decode": Worker}
        key = {"x-api-key": "secret"}
        async with relaying(
            "ED" if apart else "E", "--admin-api-key", "secret", "--encode-timeout", "10",
            kind=lambda kind: kinds[kind](kind),
        ) as relayed, server:  # fmt: skip
            named = {"role": role, "url": url, "ec_zmq_addrs": ADDRESSES[:2], "dp_size": 2}
            status, answer = await relayed.post(named, key, "/instances")
            assert status == 200, answer
            for instance in relayed.gateway.fleet.all():
                instance.answered()
            relayed.gateway.fleet.news()
            async with relayed.session.get(relayed.url + "/instances", headers=key) as response:
                shown = {one["url"]: one for one in (await response.json())["instances"]}
            assert shown[url]["ec_zmq_addrs"] == ADDRESSES[:2]
            for number in range(2):
                await check(relayed, pictures(data_url("A"), data_url(f"{number}")))
            assert network.requests == dict.fromkeys(ADDRESSES[:2], 1)
            (*_, asked) = worker.asked
            assert ("kv_transfer_params" in asked.body) is apart
            for decode in relayed.workers["decode"]:
                assert all("x-data-parallel-rank" not in one.headers for one in decode.asked)

    run(work)
