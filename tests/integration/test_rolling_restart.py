"""`triptych restart` on a stack that serves all the while."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from benchmarks.common.processes import free_port
from tests.support.stack import START_S, STOP_S
from triptych.launch.restart import main as restart

ROOT = Path(__file__).parents[2]
PORTS = {
    "--port": 1, "--master-port": 1, "--encode-port": 2, "--prefill-port": 2, "--decode-port": 2,
}  # fmt: skip
VLLM_PORTS = {"--events-port": 8, "--side-port": 4}
"""How many in a row each flag names the first of."""
CLIENTS = 4
PREFILL = ("prefill-0", "prefill-1")
ROLES = "proxy,encode,prefill,decode,master"
DECODE = ("decode-0", "decode-1")
# What `triptych serve --engine vllm` starts, with our timed workers in the place of vLLM's.
VLLM = """#!{python}
import os, sys
given = sys.argv[2:]
role = "encode" if "--no-enable-prefix-caching" in given else "prefill_decode"
port = given[given.index("--port") + 1]
os.execv(sys.executable, [sys.executable, "-P", "-m", "services.mock", "--role", role, "--port",
                          port, "--dialect", "openai", "--model", "demo"])
"""


def port_flags(first: int, counts: Mapping[str, int]) -> list[str]:
    """Each flag with the first of its ports; all of them lie behind one another."""
    words = []
    for flag, count in counts.items():
        words += [flag, str(first)]
        first += count
    return words


def engine_flags(engine: str, folder: Path) -> list[str]:
    if engine != "vllm":
        return ["--engine", engine]
    program = folder / "vllm"
    program.write_text(VLLM.format(python=sys.executable))
    program.chmod(0o755)
    return ["--engine", "vllm", "--vllm", str(program)]


@contextmanager
def serving(folder: Path, port: int, engine: str, prefill: int) -> Iterator[subprocess.Popen[str]]:
    """An encode worker, `prefill` workers and two that decode, without a model."""
    counts = {**PORTS, **(VLLM_PORTS if engine == "vllm" else {})}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "triptych", "serve", "demo", *engine_flags(engine, folder),
         "--num-p", str(prefill), "--num-d", "2", *port_flags(port, counts)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("Serving at "):
                break
        assert said and said[-1].startswith("Serving at "), "".join(said)
        yield process
    finally:
        # Politely at first: a test that failed has left the stack's other processes to it.
        process.terminate()
        try:
            process.wait(STOP_S)
        finally:
            process.kill()
            process.stdout.close()


async def client(session: aiohttp.ClientSession, url: str, over: asyncio.Event) -> list[str]:
    """What each request came to, one after the other until it is `over`."""
    found: list[str] = []
    while not over.is_set():
        body = {"messages": [{"role": "user", "content": f"say {len(found)}"}], "max_tokens": 8}
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            told = await answer.json()
            found.append(told["choices"][0]["finish_reason"] if answer.ok else str(told))
    return found


@pytest.mark.parametrize(("engine", "prefill"), [("mock", PREFILL), ("vllm", ())])
async def test_every_process_is_another_afterwards_and_no_request_has_failed(
    engine: str,
    prefill: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    port = free_port(sum({**PORTS, **VLLM_PORTS}.values()))
    url, over = f"http://127.0.0.1:{port}", asyncio.Event()
    restarted = ["encode-0", *prefill, *DECODE, "master", "proxy"]
    with serving(tmp_path, port, engine, len(prefill)) as stack:
        timeout = aiohttp.ClientTimeout(total=START_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            clients = [asyncio.create_task(client(session, url, over)) for _ in range(CLIENTS)]
            assert await asyncio.to_thread(restart, ["--roles", ROLES]) == 0
            over.set()
            found = [each for one in await asyncio.gather(*clients) for each in one]
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines if " is restarted (" in line] == restarted
        assert set(found) == {"length"}
        for name in restarted:
            log = (tmp_path / "logs" / f"{name}.log").read_text()
            assert log.count(" ready on http://") == 2, name
        stack.send_signal(signal.SIGTERM)
        assert stack.wait(STOP_S) == 0


def test_without_a_stack_the_flag_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert restart(["--log-path", str(tmp_path / "none")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --log-path: no stack that runs has its logs in")
