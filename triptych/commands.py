"""What `triptych COMMAND ...` runs. A command is imported once it is asked for: a proxy and a
master must start without what workers need."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType

from protocol.termination import ended_by_sigterm

Main = Callable[[Sequence[str]], int]
_NEEDED = ("torch", "transformers", "safetensors")


@dataclass(frozen=True)
class Command:
    """One line of the help, and how to get the function that does it."""

    group: str
    help: str
    find: Callable[[], Main]
    is_worker: bool = False  # needs the packages of the extra `worker`


def _function(module: str) -> Callable[[], Main]:
    def find() -> Main:
        found: Main = import_module(module).main
        return found

    return find


def _worker(role_name: str) -> Callable[[], Main]:
    def find() -> Main:
        role = getattr(import_module("services.worker.roles"), role_name)
        serve = import_module("services.worker.main").main
        return lambda argv: int(serve(role, argv))

    return find


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "serve": Command(
            "A whole stack on this machine",
            "workers, master and proxy for one model, and the one address to talk to",
            _function("triptych.launch.serve"),
        ),
        "restart": Command(
            "A whole stack on this machine",
            "restarts what serve has started, one process at a time, while it serves",
            _function("triptych.launch.restart"),
        ),
        "encode": Command(
            "One worker", "pictures to embeddings", _worker("ENCODE"), True
        ),
        "prefill": Command(
            "One worker",
            "prompts to KV blocks and the first token",
            _worker("PREFILL"),
            True,
        ),
        "decode": Command(
            "One worker",
            "the tokens after the first one; prefills what it gets no KV for",
            _worker("DECODE"),
            True,
        ),
        "fusion": Command(
            "One worker",
            "all three stages in one process",
            _worker("PDFUSION"),
            True,
        ),
        "any": Command(
            "One worker",
            "encode, prefill or decode, as the master says at the time",
            _worker("ANY"),
            True,
        ),
        "mock": Command(
            "One worker",
            "workers without a model, on a timing model, with faults to order",
            _function("services.mock.main"),
        ),
        "proxy": Command(
            "Before the workers", "the OpenAI API over a fleet", _function("proxy.__main__")
        ),
        "master": Command(
            "Before the workers",
            "knows caches and queues, places requests",
            _function("services.master.__main__"),
        ),
        "list": Command(
            "Before the workers",
            "tells masters of workers that cannot register, such as vLLM's",
            _function("triptych.launch.list_workers"),
        ),
        "ask": Command(
            "Try a server", "a question, with a picture of yours or drawn ones",
            _function("benchmarks.ask"),
        ),
        "bench": Command(
            "Try a server",
            "the serving benchmark, with the options of vllm bench serve",
            _function("benchmarks.serve.__main__"),
        ),
        "plan": Command(
            "Choose a fleet",
            "the cheapest numbers of workers for a load and objectives, by simulation",
            _function("benchmarks.plan.__main__"),
        ),
    }
)  # fmt: skip


def missing_for_workers() -> str:
    """What to do about packages that workers need and that are not installed; "" if all are."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if not missing:
        return ""
    return f"workers need {', '.join(missing)}: pip install 'triptych[worker]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: the command's own; 2 if there is no such command or a package is missing."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        print(f"triptych {importlib.metadata.version('triptych')}")
        return 0
    if (command := COMMANDS.get(name)) is None:
        print(f"error: {name!r} is not one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if command.is_worker and (missing := missing_for_workers()):
        print(f"error: {missing}", file=sys.stderr)
        return 2
    try:
        # First of all: to import a command takes seconds.
        with ended_by_sigterm():
            return command.find()(words[1:])
    except KeyboardInterrupt:
        # 128 and the number of SIGINT: how shells tell of a command that Ctrl-C has ended.
        return 130


def usage() -> str:
    """The commands by group."""
    lines = ["usage: triptych COMMAND [OPTIONS]    triptych COMMAND --help"]
    group = ""
    for name, command in COMMANDS.items():
        if command.group != group:
            group = command.group
            lines += ["", f"{group}:"]
        lines.append(f"  {name:9} {command.help}")
    lines += [
        "",
        "Every option is also an environment variable, TRIPTYCH_ and its name, and a line of the"
        " YAML file of --config.",
    ]
    return "\n".join(lines)
