"""Workers that a master was told of by hand, as the masters of a fleet tell one another."""

import msgspec

from services.master.config import MasterConfig
from services.master.fleet.added_workers import AddedWorkers, decode_probed
from services.master.master import Master


def told(address: str) -> bytes:
    return msgspec.json.encode(
        {"url": "http://w:1", "role": "prefill", "model": "m", "ec_zmq_addrs": [address]}
    )


def test_what_another_master_says_again_later_does_not_undo_a_newer_call() -> None:
    config = MasterConfig()
    added = AddedWorkers(config, Master(config).registry)
    added.add(decode_probed(told("tcp://w:5002")), 0.0)
    added.learn(told("tcp://w:5003"), 1.0, fresh=True)
    added.learn(told("tcp://w:5002"), 2.0, fresh=False)
    (worker,) = added.all()
    assert worker.instance.ec_zmq_addrs == ["tcp://w:5003"]
