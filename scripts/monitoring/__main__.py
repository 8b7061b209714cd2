"""`scripts/prove_monitoring.sh`: the dashboards' queries and the alerts of a killed worker, asked
of a real Prometheus that scrapes a running stack.

Exit status: 0 if every query has a figure or a reason to have none, and the alerts of the killed
worker were pending and then fired.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from benchmarks.common.processes import call
from benchmarks.common.rows import hardware
from scripts.monitoring.alerts import Journal, shortened_config, shortened_rules
from scripts.monitoring.panels import QueryResult, queries_of, series_with_figures, table
from scripts.monitoring.processes import Ports, Prometheus, kill_worker, load, prometheus, stack

DEPLOY = Path(__file__).parents[2] / "deploy"
_PROMPTS, _RATE = 60, 3.0
_SCRAPED_S, _LOADED_S = 30.0, 90.0
_BEFORE_KILL_S = 8.0  # two scrapes under load
_ALERTS_S = 200.0  # the longest `for` of these alerts, and what comes before it
_POLL_S = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--prometheus", required=True, help="path of Prometheus' program")
    parser.add_argument(
        "--divide", type=_divisor, default=6.0,
        help="how many times shorter than deploy/prometheus has them the waits of alerts (`for`)"
        " and the evaluation interval are; 1: the files as they are",
    )  # fmt: skip
    parser.add_argument(
        "--registered", action="store_true",
        help="the proxy that is scraped knows workers by the master alone, not by flags",
    )  # fmt: skip
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    ports = Ports.free()
    with tempfile.TemporaryDirectory(prefix="monitoring-") as name:
        folder = Path(name)
        _configure(folder, ports, args.divide)
        with (
            stack(ports, folder, registered=args.registered) as url,
            prometheus(args.prometheus, folder, ports.prometheus) as api,
        ):
            return Proof(url, api, ports, folder, args.divide).run()


def _divisor(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")


def _leave(number: int, frame: object) -> NoReturn:
    """When told to stop, the command ends what it has started."""
    sys.exit(128 + number)


def _configure(folder: Path, ports: Ports, divisor: float) -> None:
    """Copies of deploy/prometheus, and the targets."""
    config = (DEPLOY / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8")
    rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    if divisor != 1:
        config, rules = shortened_config(config, divisor), shortened_rules(rules, divisor)
    (folder / "prometheus.yaml").write_text(config, encoding="utf-8")
    (folder / "alerts.yaml").write_text(rules, encoding="utf-8")
    targets = json.dumps([{"targets": ports.targets}])
    (folder / "targets.json").write_text(targets, encoding="utf-8")


@dataclass(frozen=True)
class Proof:
    """One run; its result is printed as Markdown."""

    url: str
    api: Prometheus
    ports: Ports
    folder: Path
    divisor: float

    def run(self) -> int:
        """Exit status. `RuntimeError` if something does not come in time."""
        began = time.time()
        _wait(lambda: self.api.healthy_targets() == set(self.ports.targets), _SCRAPED_S)
        self._say_setup()
        for _ in range(2):  # the second time, pictures and prompts are in the caches
            self._load()
        self._misuse()
        journal = self._kill()
        judged = [
            QueryResult(query, series_with_figures(self.api.series(query.expr, began, time.time())))
            for query in queries_of(DEPLOY / "grafana" / "dashboards")
        ]
        print("\n".join(["", *table(judged), "", *journal.table()]), flush=True)
        missing = [each for each in judged if not (each.series or each.explained)]
        return 1 if missing or not self._has_fired(journal) else 0

    def _say_setup(self) -> None:
        rules = self.api.rules()
        alerts = sum(rule["type"] == "alerting" for rule in rules)
        waits = "as they are" if self.divisor == 1 else f"waits {self.divisor:g} times shorter"
        print(
            f"{time.strftime('%d %B %Y')}, {hardware(['torch'], 0)}\nPrometheus"
            f" {self.api.version()}: "
            f"{len(self.ports.targets)} of {len(self.ports.targets)} targets are scraped; deploy/"
            f"prometheus, {waits}: {alerts} alerts, {len(rules) - alerts} recorded series",
            flush=True,
        )

    def _load(self) -> None:
        log = self.folder / "load.log"
        with load(self.url, _PROMPTS, _RATE, log) as process:
            if process.wait(_LOADED_S):
                raise RuntimeError(f"the load failed:\n{log.read_text()[-2000:]}")

    def _misuse(self) -> None:
        """A request that is refused, and a client that leaves: panels of errors show them."""
        with contextlib.suppress(ConnectionError):
            call("POST", self.url, "/v1/chat/completions", _question(model="none"), _JSON)
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        with contextlib.closing(connection):
            body = _question(stream=True, max_tokens=1000, ignore_eos=True)
            connection.request("POST", "/v1/chat/completions", body, _JSON)
            connection.getresponse().read(1)

    def _kill(self) -> Journal:
        """What became of the alerts, until those of the worker fire or do not in time."""
        journal = Journal()
        with load(self.url, 10 * _PROMPTS, _RATE, self.folder / "load.log"):
            time.sleep(_BEFORE_KILL_S)
            kill_worker("services.decode", self.ports.decode)
            killed = time.monotonic()
            while not self._has_fired(journal) and time.monotonic() < killed + _ALERTS_S:
                journal.note(time.monotonic() - killed, self.api.alerts())
                time.sleep(_POLL_S)
        return journal

    def _has_fired(self, journal: Journal) -> bool:
        address = f"127.0.0.1:{self.ports.decode}"
        return all(
            journal.has_fired(*wanted)
            for wanted in (
                ("TriptychProcessDown", "instance", address),
                ("TriptychNoWorker", "role", "decode"),
                ("TriptychWorkerDown", "url", f"http://{address}"),
            )
        )


_JSON = {"content-type": "application/json"}


def _question(**fields: object) -> str:
    return json.dumps({"messages": [{"role": "user", "content": "Say a word."}], **fields})


def _wait(done: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all targets are scraped after {limit_s:g} s")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main())
