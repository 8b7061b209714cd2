"""A peer that another process names: one host, whatever ZMQ would read into more."""

import pytest
import zmq

from connectors.messages import Heartbeat
from connectors.side_client import SideClient


@pytest.mark.parametrize("form", ["127.0.0.9:0;127.0.0.1", "127.0.0.1:0;127.0.0.1", "*", "a b"])
def test_of_two_hosts_none_is_dialled(form: str) -> None:
    listener: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    port = listener.bind_to_random_port("tcp://127.0.0.1")
    client = SideClient()
    try:
        assert not client.send((form, port), Heartbeat([]))
        assert not client.sockets
        assert client.send(("127.0.0.1", port), Heartbeat([]))
        assert listener.poll(5000)
    finally:
        client.close()
        listener.close(0)
