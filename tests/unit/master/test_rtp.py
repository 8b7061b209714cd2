"""RTP-LLM's contract without HTTP."""

import asyncio
import json

from protocol.registry import Finished
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
