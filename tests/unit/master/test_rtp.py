"""RTP-LLM's contract without HTTP."""

import asyncio
import json
from typing import Any

from protocol.placement import Finished
from services.master.api.rtp import RtpContract
from services.master.api.service import MasterService
from services.master.config import MasterConfig
from tests.support.master_fleets import add, asking


async def test_who_leaves_while_waiting_waits_no_more() -> None:
    service = MasterService(MasterConfig(seed=1, busy_requests=1))
    add(service.master, "d0", "decode", events=[])
    service.schedule(asking("first"))
    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    body = json.dumps({"seq_len": 160}).encode()
    answer = asyncio.create_task(RtpContract(service, "m:1").schedule(body, left))
    await asyncio.sleep(0)
    assert service.master.waiting == 1
    left.set_result(None)
    assert await asyncio.wait_for(answer, 5.0) is None
    service.master.finished(Finished("first"), 0.0)
    service.master.pump(0.0)
    assert (service.master.waiting, len(service.master.ledger)) == (0, 0)


async def scheduled(service: MasterService, **asked: Any) -> dict[str, Any]:
    """What RTP-LLM's own client asks for, and is answered."""
    body = {
        "model": "engine_service", "block_cache_keys": [-5, 2**62], "seq_len": 320, "debug": True,
        "request_priority": 100, "request_id": 77, **asked,
    }  # fmt: skip

    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answer = await RtpContract(service, "m:1").schedule(json.dumps(body).encode(), left)
    assert answer is not None
    return answer


async def test_rtp_llms_client_gets_every_role_and_where_its_grpc_listens() -> None:
    service = MasterService(MasterConfig(seed=1))
    add(service.master, "p0", "prefill", events=[], grpc_port=9001)
    add(service.master, "d0", "decode", events=[])
    add(service.master, "e0", "encode", events=[], grpc_port=9003)
    answer = await scheduled(service)
    assert (answer["code"], answer["success"]) == (200, True)
    servers = [(s["role"], s["server_ip"], s["grpc_port"]) for s in answer["server_status"]]
    assert servers == [(1, "p0", 9001), (2, "d0", 0), (3, "e0", 9003)]
    debug = answer["server_status"][0]["debug_info"]
    assert all(type(value) is int for value in debug.values())


async def test_rtp_llms_errors_stand_in_code() -> None:
    service = MasterService(MasterConfig(seed=1))
    assert (await scheduled(service))["code"] == 8400
    add(service.master, "p0", "prefill", events=[])
    assert (await scheduled(service))["code"] == 8403
    assert (await scheduled(service, seq_len=0))["code"] == 8406
    assert (await scheduled(service, model="another"))["code"] == 8400
