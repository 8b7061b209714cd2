"""The ucxx package, and how UCX is configured."""

from __future__ import annotations

import fcntl
import importlib
import os
import socket
import struct
from typing import Any

from protocol.errors import ConfigError

# Shared memory is left out as UCX itself leaves it out where the death of a peer must be noticed.
# Segments of 128 KiB triple what TCP moves at its default of 8; what fits one is sent at once. The
# lock between UCX's thread and ours is a mutex, as spinning on it halves what arrives.
_SETTINGS = (
    ("TLS", "^shm"),
    ("USE_MT_MUTEX", "y"),
    ("TCP_CONN_NB", "y"),
    ("TCP_TX_SEG_SIZE", "128K"),
    ("TCP_RX_SEG_SIZE", "128K"),
    ("RNDV_THRESH", "128K"),
)
_SIOCGIFADDR = 0x8915


def load() -> tuple[Any, Any]:
    """ucxx's core API and its array wrapper. Importing ucxx writes UCX settings of its own into the
    environment, where NIXL and child processes would read them: they are taken out again."""
    before = set(os.environ)
    try:
        api = importlib.import_module("ucxx._lib.libucxx")
        array = importlib.import_module("ucxx._lib.arr").Array
    except ImportError as error:
        raise ConfigError(
            f"ucx: the ucxx package is missing ({error}): pip install triptych[ucx]"
        ) from None
    for name in set(os.environ) - before:
        del os.environ[name]
    return api, array


def settings(host: str) -> dict[str, str]:
    """UCX's configuration. Variables of the environment (UCX_TLS, …) win over ours."""
    chosen = {name: value for name, value in _SETTINGS if f"UCX_{name}" not in os.environ}
    if "UCX_NET_DEVICES" not in os.environ:
        chosen["NET_DEVICES"] = _interface(host)
    return chosen


def _interface(host: str) -> str:
    """The network interface that has an address, as UCX listens on interfaces."""
    if host in ("", "0.0.0.0"):
        return "all"
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(f"ucx: {host} is not an address (ec_ip, kv_ip): {error}") from None
    for _, name in socket.if_nameindex():
        if _ipv4(name) == address:
            return name
    raise ConfigError(f"ucx: no network interface has the IPv4 address {address} (ec_ip, kv_ip)")


def _ipv4(interface: str) -> str | None:
    # struct ifreq: 16 bytes of name, then a sockaddr_in, in which the address follows family and
    # port.
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
