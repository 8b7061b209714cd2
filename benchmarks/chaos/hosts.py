"""Two hosts, one of which is cut off under load: its requests go on at the other one, soon.

    python -m benchmarks.chaos.hosts [--quick] [--json FILE] [--transport nixl|ucx] [--lists]

Needs root: each host is a network namespace with an encoder, a prefill and a decode worker, a
bridge lies between them, and clients, two proxies and a master (`--lists`: none) are beyond it. The
second host's port is taken out of the bridge, so that nothing answers and nothing refuses, for 8
and for 25 s; then, for 12 s, it hears the others and cannot answer. `ours` counts what must be none
(`peer`): requests that failed, tokens other than those of an undisturbed run, blocks and bytes
still held once all is idle; and what the longest answer took that met a cut, beside the longest
undisturbed one and the 5 s in which a silent worker is to be given up. Exit status 1 if a row does
not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.acts import CLIENTS, SEED, TOKENS, VERSIONS, Act, meets
from benchmarks.chaos.report import left_rows, tell
from benchmarks.common.rows import Row, arguments, at_most, finish, hardware, head, line
from benchmarks.soak.books import settle
from benchmarks.soak.load import Load, Outcome
from benchmarks.soak.stack import MODEL, Service, Stack, service, started

_ROLES = ("encoder", "prefill", "decode")
_CUTS = (("cut", 8.0), ("cut", 25.0), ("half-cut", 12.0))
_PAUSE_S = 15.0  # of undisturbed load between two cuts: a master takes a host back after 10 s
_GIVE_UP_S = 5.0


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@dataclass(frozen=True)
class Network:
    """A bridge, and hosts behind its ports; this process's namespace has address 1."""

    bridge: str
    hosts: int = 2

    def name(self, host: int) -> str:
        return f"{self.bridge}h{host}"

    def address(self, host: int) -> str:
        """Of a host from 1 on; 0 is this process's."""
        return f"10.77.0.{host + 1}"

    def build(self) -> None:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address(0)}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for host in range(1, self.hosts + 1):
            name = self.name(host)
            _ip("netns", "add", name)
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", name, "master", self.bridge, "up")
            _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def drop(self) -> None:
        for host in range(1, self.hosts + 1):
            subprocess.run(["ip", "netns", "del", self.name(host)], check=False)
        subprocess.run(["ip", "link", "del", self.bridge], check=False)

    @contextlib.contextmanager
    def cut(self, host: int) -> Iterator[None]:
        """Its packets and those to it are lost; its own interface stays up."""
        _ip("link", "set", self.name(host), "nomaster")
        try:
            yield
        finally:
            _ip("link", "set", self.name(host), "master", self.bridge)

    @contextlib.contextmanager
    def half_cut(self, host: int) -> Iterator[None]:
        """It hears the others, which do not hear it."""
        others = [f"{self.address(i)}/32" for i in range(self.hosts + 1) if i != host]
        for other in others:
            _ip("-n", self.name(host), "route", "add", "blackhole", other)
        try:
            yield
        finally:
            for other in others:
                _ip("-n", self.name(host), "route", "del", "blackhole", other)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    made = Network(f"tt{uuid.uuid4().hex[:6]}")
    try:
        made.build()
        yield made
    finally:
        made.drop()


@contextlib.contextmanager
def running(transport: str, lists: bool, hosts: Network, folder: Path) -> Iterator[Stack]:
    """One worker of each role on each host, two proxies and, unless there are `lists`, a master."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Two namespaces of one machine could reach each other past the bridge.
    os.environ |= {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"}
    masters = [] if lists else [service("master", "services.master", [], folder)]
    for one in masters:
        one.host = hosts.address(0)
    joined = ["--master-url", masters[0].url] if masters else []
    workers = [
        _worker(role, host, transport, joined, hosts, folder)
        for role in _ROLES
        for host in range(1, hosts.hosts + 1)
    ]
    flags = ["--model", MODEL, *(joined or _lists(workers))]
    doors = [service(f"proxy-{i}", "proxy", flags, folder) for i in range(2)]
    stack = Stack(workers, doors, masters, folder / "shared", folder / "segments")
    stack.root.mkdir()
    with started(stack):
        yield stack


def _worker(
    role: str, host: int, transport: str, joined: list[str], hosts: Network, folder: Path
) -> Service:
    """With the timeouts that are usual."""
    address = hosts.address(host)
    ec = json.dumps({"ec_connector": transport, "ec_ip": address})
    kv = json.dumps({"kv_connector": transport, "kv_ip": address})
    flags = ["--model", MODEL, "--ec-transfer-config", ec, "--kv-transfer-config", kv, *joined]
    flags += ["--dtype", "float32", "--kv-cache-memory-bytes", str(24 << 20)]
    made = service(f"{role}-{host}", f"services.{role}", flags, folder)
    made.host, made.inside = address, hosts.name(host)
    return made


def _lists(workers: Sequence[Service]) -> list[str]:
    flags: list[str] = []
    for role, option in zip(_ROLES, ("encode", "prefill", "decode"), strict=True):
        urls = ",".join(w.url for w in workers if w.name.startswith(role))
        flags += [f"--{option}-servers-urls", urls]
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row does not hold."""
    parser = arguments("chaos.hosts", __doc__)
    parser.add_argument("--transport", choices=("nixl", "ucx"), default="ucx")
    parser.add_argument(
        "--lists", action="store_true", help="no master: proxies have lists of workers"
    )
    args = parser.parse_args(argv)
    if os.geteuid():
        parser.error("network namespaces need root")
    print(hardware(VERSIONS, SEED))
    print(f"two hosts over {args.transport}, {CLIENTS} clients, {TOKENS} tokens each", flush=True)
    rows = _rows(args)
    print("\n".join([head(), *map(line, rows)]))
    return finish(rows, args.json)


def _rows(args: argparse.Namespace) -> list[Row]:
    """Learn the right answers, cut, look what is left."""
    with (
        tempfile.TemporaryDirectory(prefix="chaos-hosts-") as name,
        network() as hosts,
        running(args.transport, args.lists, hosts, Path(name)) as stack,
    ):
        load = Load([proxy.port for proxy in stack.proxies], SEED, 0.3, 0.0, TOKENS)
        load.learn()
        before = settle(stack)
        load.start(CLIENTS)
        acts = _play(hosts, _CUTS[:1] if args.quick else _CUTS)
        load.stop()
        after = settle(stack)
        changed = load.check_new()
    tell(load.outcomes, acts)
    return [
        *_outcome_rows(load.outcomes, acts),
        at_most("new questions answered otherwise once more, undisturbed", changed, 0, 1),
        *left_rows(before, after),
    ]


def _play(hosts: Network, cuts: Sequence[tuple[str, float]]) -> list[Act]:
    acts = []
    for what, seconds in cuts:
        time.sleep(_PAUSE_S)
        began = time.monotonic()
        with hosts.cut(2) if what == "cut" else hosts.half_cut(2):
            time.sleep(seconds)
        acts.append(Act(f"{what} for {seconds:g} s", began, time.monotonic()))
        print(f"  {what} for {seconds:g} s", flush=True)
    time.sleep(_PAUSE_S)
    return acts


def _outcome_rows(outcomes: list[Outcome], acts: Sequence[Act]) -> list[Row]:
    for one in [one for one in outcomes if one.verdict != "right"]:
        print("  NOT EXCUSED:", one)
    verdicts = [one.verdict for one in outcomes]
    calm = [o for o in outcomes if not any(meets(o, act) for act in acts)]
    longest = max((o.ended - o.began for o in calm), default=0.0)
    rows = [
        at_most("requests failed", verdicts.count("failed"), 0, 1),
        at_most("answers other than the undisturbed ones", verdicts.count("wrong"), 0, 1),
    ]
    for act in acts:
        caught = [o.ended - o.began for o in outcomes if meets(o, act) and o.began < act.began]
        came = [o.ended - o.began for o in outcomes if meets(o, act) and o.began >= act.began]
        for who, found in (("caught by it", caught), ("come during it", came)):
            name = f"{act.what}: longest answer {who}, s"
            rows.append(at_most(name, max(found, default=0.0), longest + _GIVE_UP_S, 1))
    return rows


if __name__ == "__main__":
    sys.exit(main())
