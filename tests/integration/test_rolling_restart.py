"""`triptych serve` as a user starts it, and `triptych restart` while it serves; with workers that
have no model."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from PIL import Image

from benchmarks.ask import main as ask
from benchmarks.common.pictures import encode_image
from benchmarks.common.processes import free_port
from tests.support.stack import START_S, STOP_S
from triptych.launch.restart import main as restart

ROOT = Path(__file__).parents[2]
PORTS = {
    "--port": 1, "--master-port": 1, "--encode-port": 2, "--prefill-port": 2, "--decode-port": 2,
}  # fmt: skip
VLLM_PORTS = {"--events-port": 8, "--side-port": 4}
"""How many in a row each flag names the first of."""
CLIENTS, PAUSE_S = 3, 0.2
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


@dataclass(frozen=True)
class Served:
    """A stack that serves, in a folder of its own; what it has said until then."""

    folder: Path
    url: str
    said: list[str]

    @property
    def ready(self) -> set[str]:
        return {line.split()[0] for line in self.said if " ready after " in line}

    @property
    def logs(self) -> dict[str, str]:
        return {path.stem: path.read_text() for path in (self.folder / "logs").glob("*.log")}


@contextmanager
def serving(folder: Path, engine: str, *flags: str) -> Iterator[Served]:
    """Two workers that decode, without a model, and what flags ask for; ends when it is told."""
    counts = {**PORTS, **(VLLM_PORTS if engine == "vllm" else {})}
    port = free_port(sum(counts.values()))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "triptych", "serve", "demo", *engine_flags(engine, folder),
         "--num-d", "2", *flags, *port_flags(port, counts)],
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
        url = said[-1].split()[2].removesuffix("/v1")
        assert url == f"http://127.0.0.1:{port}"
        yield Served(folder, url, said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0
    finally:
        # Politely at first: a test that failed has left the stack's other processes to it.
        process.terminate()
        try:
            process.wait(STOP_S)
        finally:
            process.kill()
            process.stdout.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Of workers on a timing model."""
    with serving(tmp_path_factory.mktemp("mock"), "mock") as served:
        yield served


async def client(session: aiohttp.ClientSession, url: str, over: asyncio.Event) -> list[str]:
    """What each request came to, one after the other until it is `over`."""
    found: list[str] = []
    while not over.is_set():
        body = {"messages": [{"role": "user", "content": f"say {len(found)}"}], "max_tokens": 16}
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            told = await answer.json()
            found.append(told["choices"][0]["finish_reason"] if answer.ok else str(told))
        await asyncio.sleep(PAUSE_S)
    return found


async def asked_while_restarted(served: Served, roles: str) -> set[str]:
    """What became of requests that clients sent all the while."""
    over, timeout = asyncio.Event(), aiohttp.ClientTimeout(total=START_S)
    words = ["--log-path", str(served.folder / "logs"), "--roles", roles]
    async with aiohttp.ClientSession(timeout=timeout) as session:
        clients = [asyncio.create_task(client(session, served.url, over)) for _ in range(CLIENTS)]
        assert await asyncio.to_thread(restart, words) == 0
        over.set()
        return {each for one in await asyncio.gather(*clients) for each in one}


def restarted(served: Served, output: str) -> list[str]:
    """The processes that were, in this order; each of them has been ready twice."""
    names = [line.split()[0] for line in output.splitlines() if " is restarted (" in line]
    for name, log in served.logs.items():
        assert log.count(" ready on http://") == 1 + (name in names), name
    return names


def test_a_stack_says_one_address_and_answers_there(
    stack: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stack.ready == {"master", "encode-0", "prefill-0", *DECODE, "proxy"}
    picture = tmp_path / "picture.png"
    picture.write_bytes(encode_image(Image.new("RGB", (64, 64))))
    assert ask(["--base-url", stack.url, "What is this?", "--image", str(picture)]) == 0
    assert capsys.readouterr().out.strip()
    assert set(stack.logs) == stack.ready


async def test_every_process_is_another_afterwards_and_no_request_has_failed(
    stack: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    found = await asked_while_restarted(stack, "proxy,encode,prefill,decode,master")
    assert found == {"length"}
    names = restarted(stack, capsys.readouterr().out)
    assert names == ["encode-0", "prefill-0", *DECODE, "master", "proxy"]


async def test_workers_that_cannot_register_are_back_with_a_master_that_restarts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, "vllm", "--num-e", "0", "--num-p", "0") as served:
        assert await asked_while_restarted(served, "decode,master") == {"length"}
        assert restarted(served, capsys.readouterr().out) == [*DECODE, "master"]


def test_without_a_stack_the_flag_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert restart(["--log-path", str(tmp_path / "none")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --log-path: no stack that runs has its logs in")
