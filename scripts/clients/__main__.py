"""`python -m scripts.clients [--venv DIR] [--json FILE] [CLIENT...]`; see CLIENTS."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from scripts.clients.fleets import FLEETS
from scripts.interop.table import Table

HERE = Path(__file__).parent
CLIENT_S = 960.0


@dataclass(frozen=True)
class Client:
    """A file of cases, and the folder of `--venv` whose interpreter runs it."""

    venv: str
    file: str
    large: bool = False  # runs only if it is named
    fleet: str = "text"  # of FLEETS: what it is run against

    def command(self, venv: Path) -> list[str]:
        if self.file.endswith(".mjs"):
            # Beside node_modules, where Node looks for what a file imports.
            return [str(venv / "openai/bin/node"), str(venv / "node" / self.file)]
        return [str(venv / self.venv / "bin/python"), str(HERE / "cases" / self.file)]


CLIENTS: Mapping[str, Client] = MappingProxyType(
    {
        "openai-python": Client("openai", "openai_python.py"),
        "anthropic": Client("openai", "anthropic_python.py"),
        "schemathesis": Client("openai", "api_document.py"),
        "schemathesis-pooling": Client("openai", "api_document.py", fleet="vectors"),
        "lm-eval": Client("lmeval", "lm_eval_python.py"),
        "guidellm": Client("guidellm", "guidellm_bench.py", large=True),
        "aiperf": Client("aiperf", "aiperf_bench.py", large=True),
        "langchain": Client("openai", "langchain_python.py"),
        "litellm": Client("litellm", "litellm_python.py"),
        "instructor": Client("litellm", "instructor_python.py"),
        "openai-node": Client("node", "openai.mjs"),
        "ai-sdk": Client("node", "ai_sdk.mjs"),
    }
)


def check(table: Table, name: str, venv: Path, site: str) -> None:
    """All cases of a client; what it wrote beside them is shown if one fails."""
    done = subprocess.run(
        CLIENTS[name].command(venv),
        env={**os.environ, "CLIENTS_SITE": site},
        capture_output=True, text=True, timeout=CLIENT_S,
    )  # fmt: skip
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    for one in told:
        table.add(one["case"], not one["error"], one["error"].replace("\n", " ").replace("|", " "))
    if done.returncode or not told:
        table.add("runs to its end", False, done.stderr[-500:])
    if not all(not one["error"] for one in told):
        print(done.stderr[-6000:], file=sys.stderr)


def check_fleet(table: Table, fleet: str, names: Sequence[str], venv: Path) -> None:
    """Some clients, through a proxy of each dialect."""
    running, site_of = FLEETS[fleet]
    with running() as fronts:
        for dialect, url in fronts.items():
            site = json.dumps(site_of(url))
            for name in names:
                with table.under(f"{name}, {dialect}"):
                    check(table, name, venv, site)


def main() -> int:
    """Exit status 0 if every case holds, 1 if not."""
    arguments = argparse.ArgumentParser(prog="python -m scripts.clients", allow_abbrev=False)
    arguments.add_argument("--venv", type=Path, default=Path(".venv-clients"))
    arguments.add_argument("--json", type=Path, help="write the cases here too")
    arguments.add_argument(
        "clients",
        nargs="*",
        help=f"some of {', '.join(CLIENTS)}; all but guidellm and aiperf if none",
    )
    given = arguments.parse_args()
    unknown = set(given.clients) - set(CLIENTS)
    if unknown:
        arguments.error(f"no such client: {', '.join(unknown)}")
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the stack is ended even then
    usual = [name for name, client in CLIENTS.items() if not client.large]
    table, venv = Table(), given.venv.absolute()
    for file in (HERE / "node").glob("*.mjs"):
        (venv / "node" / file.name).write_bytes(file.read_bytes())
    for fleet in FLEETS:
        names = [name for name in given.clients or usual if CLIENTS[name].fleet == fleet]
        if names:
            check_fleet(table, fleet, names, venv)
    return table.report("case", given.json)


if __name__ == "__main__":
    sys.exit(main())
