"""Runs of the serving benchmark against a server in the test's process."""

import gc

from benchmarks.serve.__main__ import benchmark
from benchmarks.serve.args import Settings, parse
from benchmarks.serve.report import Report
from tests.support.fake_openai import FakeOpenAI

SHORT = ("--num-prompts", "6", "--random-input-len", "20", "--random-output-len", "3")


def settings(url: str, *argv: str) -> Settings:
    return parse(["--base-url", url, "--disable-tqdm", *argv])


async def measure(server: FakeOpenAI, *argv: str) -> Report:
    try:
        async with server.serve() as url:
            return await benchmark(settings(url, *argv))
    finally:
        gc.freeze()  # again, as tests/conftest.py does: a run lets go of all that was frozen
