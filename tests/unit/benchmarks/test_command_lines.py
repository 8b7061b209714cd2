"""What the command lines of all benchmarks have in common, without running one."""

import argparse
import importlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"
MEASURES_NOTHING = {"ask", "plan"}
START = 'if __name__ == "__main__":'


def programs() -> dict[str, str]:
    """Name after `python -m benchmarks.` → the module that runs then."""
    files = [*FOLDER.glob("*.py"), *FOLDER.glob("*/__main__.py")]
    found = {file: file.relative_to(FOLDER).with_suffix("").parts for file in files}
    return {
        parts[0]: ".".join(("benchmarks", *parts))
        for file, parts in found.items()
        if START in file.read_text() and parts[0] not in MEASURES_NOTHING
    }


class Parsed(Exception):
    """A benchmark has read its command line, and goes no further."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given


@pytest.fixture
def parsing_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Benchmarks end once they have read their command line."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser, argv: Any = None) -> None:
        raise Parsed(parse(parser, argv))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_benchmarks_are_found() -> None:
    assert {"bench_fleet", "bench_kernels", "chaos", "serve", "soak"} <= set(programs())
    assert not {"ask", "common", "plan"} & set(programs())


@pytest.mark.usefixtures("parsing_only")
@pytest.mark.parametrize("name", programs())
def test_every_benchmark_has_a_quick_run_and_writes_json(name: str, tmp_path: Path) -> None:
    main = importlib.import_module(programs()[name]).main
    with pytest.raises(Parsed) as stopped:
        main(["--quick", "--json", str(tmp_path / "rows.json")])
    assert (stopped.value.given.quick, stopped.value.given.json) == (True, tmp_path / "rows.json")
    with pytest.raises(Parsed) as stopped:
        main([])
    assert (stopped.value.given.quick, stopped.value.given.json) == (False, None)
