"""`python -m scripts.clients [--venv DIR] [--json FILE] [CLIENT...]`; see CLIENTS."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.common.pictures import sample
from scripts.clients.likelihoods import likelihoods
from scripts.interop.table import Table
from tests.support.stack import call, running

HERE = Path(__file__).parent
DEMO = Path("models/demo")
TEXT = sample("text", 0)
PICTURE = sample("describe", 0)
CLIENT_S = 420.0
DIALECTS = ("tokens", "openai")


@dataclass(frozen=True)
class Client:
    """A file of cases, and the folder of `--venv` whose interpreter runs it."""

    venv: str
    file: str
    large: bool = False  # runs only if it is named

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


@contextmanager
def fleet() -> Iterator[Mapping[str, str]]:
    """Master, E, P and D of the demonstration model; the URL of a proxy of each dialect."""
    template = ("--chat-template", str(HERE / "template.jinja"))
    with running(DEMO, forked=False) as stack:
        master = stack.start_plain("services.master").wait_ready()
        known = ("--master-url", master)
        roles = [
            stack.start(f"services.{r}", *known, *template)
            for r in ("encoder", "prefill", "decode")
        ]
        for process in roles:
            process.wait_ready()
        fronts = {}
        for dialect in DIALECTS:
            front = stack.start("proxy", "--dialect", dialect, *known, *template)
            fronts[dialect] = front.wait_ready()
        yield fronts


def site_of(url: str) -> str:
    """What cases are told: the answers that they must get are those of a plain request."""
    return json.dumps(
        {
            "url": url,
            "model": "tiny",
            "text": TEXT.text,
            "answer": plain(url, TEXT.messages()),
            "messages": PICTURE.openai_messages(),
            "seen": plain(url, PICTURE.openai_messages()),
            "folder": str(DEMO.absolute()),
            "likelihoods": likelihoods(DEMO, url),
        }
    )


def plain(url: str, messages: object) -> str:
    body = {"model": "tiny", "messages": messages, "temperature": 0}
    status, answer = call(f"{url}/v1/chat/completions", body)
    if status != 200:
        raise RuntimeError(f"{status}: {answer}")
    return str(answer["choices"][0]["message"]["content"])


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
    with fleet() as fronts:
        for dialect, url in fronts.items():
            site = site_of(url)
            for name in given.clients or usual:
                with table.under(f"{name}, {dialect}"):
                    check(table, name, venv, site)
    return table.report("case", given.json)


if __name__ == "__main__":
    sys.exit(main())
