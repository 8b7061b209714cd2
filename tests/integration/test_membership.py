"""Real workers with a real master: who they are, what they hold, and how they leave.

The tests share one fleet, and the last of them take it apart.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import zmq

from protocol.event_frames import SNAPSHOT, parse_frames, replay_request
from protocol.keys import block_keys, root_key
from protocol.kv_events import BlockStored, EmbeddingStored, decode_event_batch, short_key
from protocol.types import GenerateRequest
from services.frontend.render import Frontend
from tests.conftest import ModelDir
from tests.support.clients import complete, openai_messages
from tests.support.conversations import LONG, asking, picture
from tests.support.frontend_helpers import chat, frontend
from tests.support.reference import Messages
from tests.support.stack import Process, Stack, call, proxy, running
from tests.support.waiting import until

WAIT_S = 10.0
LEASE_S = 5.0
BLOCKS = 48
DESCRIBED = asking("Look at this:", picture(901), LONG, "What does the picture say of it?")


@dataclass
class Fleet:
    stack: Stack
    master: Process
    encode: Process
    prefill: Process
    decode: Process
    proxy: Process
    frontend: Frontend

    def workers(self) -> dict[str, Any]:
        """The master's view by URL."""
        _, answer = call(f"{self.master.url}/workers")
        return {view["info"]["url"]: view for view in answer.get("workers", [])}

    def left(self, version: str) -> tuple[set[str], set[str]]:
        """Ids of workers that have left since, and of these the ones that meant to."""
        _, answer = call(f"{self.master.url}/workers?after={version}")
        return set(answer.get("gone", [])), set(answer.get("retired", []))

    def render(self, messages: Messages) -> GenerateRequest:
        request = chat(openai_messages(messages))
        return asyncio.run(self.frontend.render_chat(request, request_id="r")).generate

    def schedule(self, messages: Messages) -> Any:
        """Where the master would have a prompt served; it is told at once that it is over."""
        prompt = self.render(messages)
        info = self.frontend.info
        root = root_key(model=info.name, revision=info.revision)
        keys = block_keys(prompt.token_ids, 16, root, prompt.mm_items)
        body = {
            "request_id": "probe", "model": "tiny", "prompt_tokens": len(prompt.token_ids),
            "block_keys": [short_key(key) for key in keys], "block_size": 16, "max_tokens": 4,
            "items": [{"mm_hash": i.mm_hash, "tokens": i.length, "offset": i.offset}
                      for i in prompt.mm_items],
        }  # fmt: skip
        status, answer = call(f"{self.master.url}/schedule", body)
        assert status == 200, answer
        call(f"{self.master.url}/finished", {"reports": [{"request_id": "probe"}]})
        return answer


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir) -> Iterator[Fleet]:
    with running(model_dir("qwen2_5_vl")) as stack:
        flags = ("--lease", str(LEASE_S), "--log-level", "warning")
        master = Process("services.master", *flags, env={})
        stack.processes.append(master)
        master.wait_ready()
        # A master that is not there is told as well, and harms no worker.
        told = ("--master-url", f"http://127.0.0.1:9,{master.url}", "--heartbeat-interval", "0.2")
        pool = ("--num-gpu-blocks-override", str(BLOCKS))
        workers = [stack.start("services.encoder", *told),
                   stack.start("services.prefill", *told, *pool),
                   stack.start("services.decode", *told, *pool)]  # fmt: skip
        for process in workers:
            process.wait_ready()
        encode, prefill, decode = workers
        server = proxy(stack, [encode], [prefill], [decode])
        yield Fleet(stack, master, encode, prefill, decode, server, frontend(stack.model))


def known_keys(worker: Process) -> set[int]:
    """The keys of a worker's prefix cache, as it says itself."""
    _, status = call(f"{worker.url}/cache_status", {})
    return {short_key(key) for key in status["cached_keys"]}


def published(view: Any, topic: str) -> tuple[set[Any], set[str]]:
    """(blocks, embeddings) of a snapshot from the worker's own publisher."""
    (source,) = [s for s in view["info"]["events"] if s["topic"] == topic]
    blocks: set[Any] = set()
    media: set[str] = set()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(source["replay"])
        dealer.send_multipart(replay_request(SNAPSHOT))
        while True:
            assert dealer.poll(round(WAIT_S * 1e3))
            message = parse_frames(dealer.recv_multipart())
            if message is None:
                return blocks, media
            for event in decode_event_batch(message[1]).events:
                if isinstance(event, BlockStored):
                    blocks.update(event.block_hashes)
                elif isinstance(event, EmbeddingStored):
                    media.add(event.mm_hash)


def indexed(fleet: Fleet, worker: Process) -> tuple[int, int]:
    view = fleet.workers().get(worker.url, {})
    return view.get("indexed_blocks", 0), view.get("indexed_media", 0)


def until_indexed(fleet: Fleet, worker: Process, blocks: int) -> None:
    until(lambda: indexed(fleet, worker)[0] == blocks, blocks)


def test_workers_register_as_what_they_are(fleet: Fleet) -> None:
    until(lambda: len(fleet.workers()) == 3, fleet.master.log)
    views = fleet.workers()
    infos = {url: view["info"] for url, view in views.items()}
    assert {infos[p.url]["role"] for p in (fleet.encode, fleet.prefill, fleet.decode)} == {
        "encode", "prefill", "decode",
    }  # fmt: skip
    for info in infos.values():
        assert info["model"] == "tiny" and info["revision"] == fleet.frontend.info.revision
    prefill, encode = infos[fleet.prefill.url], infos[fleet.encode.url]
    layout = prefill["kv_layout"]
    assert layout == infos[fleet.decode.url]["kv_layout"] and layout["block_size"] == 16
    (group,) = layout["groups"]
    per_token = len(group["layers"]) * group["kv_heads"] * (group["k_dim"] + group["v_dim"])
    assert prefill["kv_bytes_per_token"] == per_token * 4
    assert prefill["kv_endpoint"]["do_remote_prefill"] and encode["ec_endpoint"]["peer_port"]
    assert "kv_layout" not in encode or encode["kv_layout"] is None
    assert [s["topic"] for s in prefill["events"]] == ["kv-events", "ec-events"]
    assert [s["topic"] for s in encode["events"]] == ["ec-events"]


def test_the_master_knows_what_a_request_has_left_behind(fleet: Fleet) -> None:
    complete(fleet.proxy, DESCRIBED, max_tokens=4)
    prompt = fleet.render(DESCRIBED)
    (item,) = prompt.mm_items
    for worker in (fleet.prefill, fleet.decode):
        until(lambda worker=worker: indexed(fleet, worker)[0] >= len(prompt.token_ids) // 16)
    until(lambda: indexed(fleet, fleet.encode) == (0, 1))
    placed = fleet.schedule(DESCRIBED)
    assert "prefill" not in placed, "decode needs no prefill worker for the last token"
    assert placed["decode"]["url"] == fleet.decode.url
    assert item.end <= placed["hit_tokens"] < len(prompt.token_ids)
    assert placed["encoders"] == [{"mm_hash": item.mm_hash, "state": "prefix"}]
    other = asking("Another question about", picture(901))
    until(lambda: indexed(fleet, fleet.prefill)[1] == 1)
    (source,) = fleet.schedule(other)["encoders"]
    assert (source["state"], source["target"]["url"]) == ("cached", fleet.prefill.url)


def test_evicted_blocks_leave_the_index(fleet: Fleet) -> None:
    """A pool of 48 blocks, filled several times over."""
    first = fleet.schedule(DESCRIBED)["hit_tokens"]
    for number in range(5):
        complete(fleet.proxy, asking(f"{number}. {LONG * 4}"), max_tokens=4)
    until(lambda: first > fleet.schedule(DESCRIBED)["hit_tokens"])
    views = fleet.workers()
    for worker in (fleet.prefill, fleet.decode):
        keys = known_keys(worker)
        assert 0 < len(keys) <= BLOCKS
        until_indexed(fleet, worker, len(keys))
        assert published(views[worker.url], "kv-events")[0] == keys
    _, media = published(views[fleet.encode.url], "ec-events")
    assert media == {fleet.render(DESCRIBED).mm_items[0].mm_hash}


def test_rtp_llms_status_routes_follow_a_cursor(fleet: Fleet) -> None:
    status, work = call(f"{fleet.decode.url}/worker_status", {"latest_finised_version": 1})
    assert (status, work["role"], work["alive"], work["dp_size"]) == (200, "decode", True, 1)
    assert len(work["finished_task_list"]) == work["version"] - 1 > 0
    assert work["finished_task_list"][-1]["input_length"] > 0
    cache = work["cache_status"]
    assert cache["total_kv_cache"] == BLOCKS * 16 and cache["cached_keys"]
    for name in ("latest_cache_version", "lastest_cache_version"):
        again = {name: cache["version"], "latest_finished_version": work["version"]}
        _, same = call(f"{fleet.decode.url}/rtp_llm/worker_status", again)
        assert same["cache_status"]["cached_keys"] is None and same["finished_task_list"] == []
    _, vit = call(f"{fleet.encode.url}/worker_status")
    assert (vit["role"], vit["cache_status"], vit["iterate_count"] > 0) == ("vit", None, True)
    assert call(f"{fleet.decode.url}/cache_status", b'{"latest_cache_version": []}')[0] == 400


def test_a_restarted_master_knows_everything_again(fleet: Fleet) -> None:
    workers = (fleet.encode, fleet.prefill, fleet.decode)
    before = {worker.url: indexed(fleet, worker) for worker in workers}
    assert all(map(any, before.values()))
    fleet.master.kill()
    complete(fleet.proxy, asking("Served while nobody is looking."), max_tokens=4)
    fleet.master.restart()
    for worker in (fleet.prefill, fleet.decode):
        until_indexed(fleet, worker, len(known_keys(worker)))
    until(lambda: indexed(fleet, fleet.encode) == before[fleet.encode.url])


def test_workers_leave_by_draining_dying_and_stopping(fleet: Fleet) -> None:
    assert fleet.schedule(DESCRIBED)["prefill"]["url"] == fleet.prefill.url
    call(f"{fleet.prefill.url}/drain", {})
    until(lambda: not fleet.workers()[fleet.prefill.url].get("usable", True))
    moved = fleet.schedule(DESCRIBED)
    assert moved["decode"]["url"] == fleet.decode.url and not moved.get("prefill")
    names = {url: view["info"]["instance_id"] for url, view in fleet.workers().items()}
    version = call(f"{fleet.master.url}/workers")[1]["version"]
    fleet.encode.kill()
    until(lambda: fleet.encode.url not in fleet.workers(), bound_s=LEASE_S + 30.0)
    assert fleet.decode.stop() == 0
    assert set(fleet.workers()) == {fleet.prefill.url}, "who stops says so, and does not lapse"
    os.kill(fleet.prefill.engine_pid, signal.SIGKILL)
    assert fleet.prefill.process.wait(WAIT_S) == 1
    assert fleet.workers() == {}, "nor does one whose engine has died"
    assert fleet.left(version) == (set(names.values()), {names[fleet.decode.url]})
