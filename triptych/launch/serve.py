"""`triptych serve MODEL`: workers, master and proxy on this machine, and one address."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from protocol.errors import ConfigError
from protocol.fleet_key import FleetOptions
from protocol.settings import resolve
from services.frontend.model_folder import find_model
from triptych.commands import missing_for_workers
from triptych.launch import plan, vllm
from triptych.launch.control import Answer, Control, Progress, Restart
from triptych.launch.membership import ListedWorkers, Membership, OwnWorkers
from triptych.launch.options import ServeConfig
from triptych.launch.plan import Role, Service
from triptych.launch.processes import LaunchError, Processes, Stopped, stopping_on_signals
from triptych.launch.rolling import RollingRestart, Stack

# What a process takes to end beyond the time that its requests have.
_ENDING_S = 15.0
_WORKERS: Mapping[str, Callable[[ServeConfig, Mapping[str, Role]], Iterator[Service]]] = {
    "triptych": plan.workers,
    "mock": plan.mock_workers,
    "vllm": vllm.vllm_workers,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after Ctrl-C or SIGTERM, 1 if a process failed, 2 for a bad configuration."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-"):
        words = ["--model", *words]
    try:
        config = resolve(ServeConfig, words, prog="triptych serve")
        parts = _checked_roles(config)
        logs = _log_folder(config)
        environment = plan.shared_environment(sum(role.count for role in parts.values()))
        return _serve(config, parts, Processes(logs, environment, _say), logs)
    except ConfigError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2


def _say(line: str) -> None:
    print(line, flush=True)


def _checked_roles(config: ServeConfig) -> dict[str, Role]:
    """What to start; `ConfigError` for all that can be known before anything is started."""
    media = plan.takes_media(find_model(config.model))
    if not media:
        _say(f"{config.model} takes no media: no encode worker is started.")
    if config.num_any and not config.master:
        raise ConfigError("--num-any: needs a master, which says what each worker serves")
    if config.num_any and config.engine == "vllm":
        raise ConfigError(
            "--num-any: vLLM's workers keep their roles; needs --engine triptych or mock"
        )
    if config.engine == "vllm":
        vllm.check(config)
    elif config.engine == "triptych" and (missing := missing_for_workers()):
        raise ConfigError(missing)
    return plan.roles(config, media=media)


def _log_folder(config: ServeConfig) -> Path:
    folder = Path(config.log_path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if config.engine == "vllm":
            Path(config.ec_shared_storage_path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be made: {error.strerror}") from None
    return folder


def _serve(config: ServeConfig, parts: Mapping[str, Role], processes: Processes, logs: Path) -> int:
    patience = config.drain_delay + config.shutdown_timeout + _ENDING_S
    with stopping_on_signals(processes), _listening(config) as listener:
        try:
            stack = _start(config, parts, processes, listener.fileno())
            _try(config, parts, processes, logs)
            if config.keep_running:
                _keep_running(config, processes, logs, stack)
        except Stopped:
            pass
        except LaunchError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        finally:
            _stop(processes, patience)
    _say(f"All processes stopped; logs are in {logs}")
    return 0


def _listening(config: ServeConfig) -> socket.socket:
    """The proxy's socket, which stays open while one proxy takes another's place. `ConfigError`."""
    listener = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        # Bound, not listening: until a proxy does, clients are refused instead of left waiting.
        listener.bind((config.host, config.port))
    except (OSError, UnicodeError) as error:
        listener.close()
        where = f"{config.host}:{config.port}"
        raise ConfigError(f"--host, --port: cannot listen on {where}: {error}") from None
    return listener


def _keep_running(config: ServeConfig, processes: Processes, logs: Path, stack: Stack) -> None:
    """Until the end is asked for; restarts meanwhile what `triptych restart` asks for."""

    def restart(asked: Restart, answer: Answer) -> None:
        longest = asked.patience_s + stack.stop_s + 2 * stack.start_s

        def say(line: str) -> None:
            _say(line)
            answer(Progress(line, silence_s=longest))

        say(f"Restarting {', '.join(asked.roles)} one process at a time ...")
        try:
            RollingRestart(stack, processes, asked.patience_s, say).run(asked.roles)
        # The system's own refusals too: the stack runs on with what is left of it.
        except (LaunchError, OSError) as error:
            say(f"error: {error}")
            answer(Progress(status=1))
        else:
            answer(Progress("All are restarted.", status=0))

    with contextlib.closing(Control(logs, restart)) as control:
        _say(f"Serving at {plan.address(config)}/v1 until Ctrl-C ...")
        processes.watch(needed="proxy", between=control.look)


def _stop(processes: Processes, patience: float) -> None:
    _say("Stopping ...")
    try:
        processes.stop(patience)
    except KeyboardInterrupt:  # asked for a second time
        processes.stop(0.0)


def _start(
    config: ServeConfig, parts: Mapping[str, Role], processes: Processes, listener: int
) -> Stack:
    """What is up then; `listener` is the number of the proxy's socket."""
    given = os.environ.get("ADMIN_API_KEY")
    admin_key = given or secrets.token_hex()
    counts = ", ".join(f"{role.count} {role.name}" for role in parts.values() if role.count)
    _say(f"Starting {config.model}: {counts}, {'a master, ' * config.master}a proxy ...")
    master = plan.master(config, admin_key) if config.master else None
    if master is not None:
        _up(config, processes, [master])
    workers = list(_WORKERS[config.engine](config, parts))
    proxy = plan.proxy(config, parts, admin_key, listener)
    if config.engine == "vllm":
        processes.start([*workers, proxy])
        processes.wait_ready(workers, config.timeout_seconds)
        _tell_master(config, parts, admin_key)
        processes.wait_ready([proxy], config.timeout_seconds)
    else:
        _up(config, processes, [*workers, proxy])
    address = plan.address(config)
    _say(f"All services are up after {processes.age:.1f} s; the OpenAI API is at {address}/v1")
    # What stands behind # is for the page alone: browsers do not send it.
    _say(f"A page to try it on is at {address}/{'' if given else f'#admin-key={admin_key}'}")
    patience = config.drain_delay + config.shutdown_timeout + _ENDING_S
    membership = _membership(config, parts, admin_key)
    return Stack(workers, master, proxy, membership, patience, config.timeout_seconds)


def _tell_master(config: ServeConfig, parts: Mapping[str, Role], admin_key: str) -> None:
    try:
        vllm.tell_master(config.master_url, admin_key, vllm.listings(config, parts))
    except RuntimeError as error:
        raise LaunchError(f"the master could not be told of the workers: {error}") from error


def _membership(config: ServeConfig, parts: Mapping[str, Role], admin_key: str) -> Membership:
    if config.engine == "vllm":
        told = vllm.listings(config, parts)
        return ListedWorkers(config.master_url, admin_key, told)
    key = resolve(FleetOptions, ()).read_fleet_key()  # of the environment that all share
    return OwnWorkers(key.headers)


def _up(config: ServeConfig, processes: Processes, services: Sequence[Service]) -> None:
    processes.start(services)
    processes.wait_ready(services, config.timeout_seconds)


def _try(config: ServeConfig, parts: Mapping[str, Role], processes: Processes, logs: Path) -> None:
    """The questions and the benchmark that were asked for."""
    encoding = parts["encode"].count or parts["any"].count
    text_only = not (encoding and plan.takes_pictures(find_model(config.model)))
    if config.ask:
        kinds = ("--kinds", "text,text,text") if text_only else ()
        flags = ("--base-url", plan.address(config), "--save", str(logs), *kinds)
        processes.run("asking the server (benchmarks.ask)", plan.python("benchmarks.ask", *flags))
    if config.num_prompts:
        flags = (
            "--backend", "openai-chat", "--base-url", plan.address(config),
            "--dataset-name", "demo", *(("--demo-kinds", "text") if text_only else ()),
            "--num-prompts", str(config.num_prompts), "--request-rate", config.request_rate,
            "--seed", "0", "--json", str(logs / "serve.json"),
        )  # fmt: skip
        command = plan.python("benchmarks.serve", *flags)
        processes.run("measuring the server (benchmarks.serve)", command)
