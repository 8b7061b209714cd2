"""What became of each mutant, kept over runs, and the sum of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.mutation.equivalents import Equivalents


@dataclass(frozen=True)
class Result:
    """`status`: killed, survived, or unsure where the tests fail or hang without the change.
    `tests`: how many it met."""

    target: str  # package or file that was given
    module: str  # file that was changed
    line: int  # of the change, from 1
    change: str  # what was changed, as text
    status: str
    by: str  # test or kind of end that killed it, "" if none did
    tests: int
    digest: str  # names the mutant: module and changed text


class Tried:
    """Results, kept in a file line by line; the last one of a mutant counts."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.results: dict[str, Result] = {}
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                result = Result(**json.loads(line))
                self.results[result.digest] = result

    def add(self, result: Result) -> None:
        self.results[result.digest] = result
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def summary(results: Sequence[Result], equivalents: Equivalents) -> str:
    """A line for each target."""
    lines = []
    for target in sorted({result.target for result in results}):
        own = [_counted(result, equivalents) for result in results if result.target == target]
        killed, survived = own.count("killed"), own.count("survived")
        rate = killed / max(1, killed + survived)
        besides = [f", {own.count(s)} {s}" for s in ("equivalent", "unsure") if s in own]
        lines.append(
            f"{target}: killed {killed} of {killed + survived} ({rate:.0%}){''.join(besides)}"
        )
    return "\n".join(lines)


def _counted(result: Result, equivalents: Equivalents) -> str:
    is_survivor = result.status == "survived"
    return (
        "equivalent"
        if is_survivor and equivalents.holds(result.module, result.change)
        else result.status
    )
