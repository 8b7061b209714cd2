"""What suits each policy on a workload, kept in a file: measured again without another search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.simulate.contenders import Contender


@dataclass(frozen=True)
class Chosen:
    """`lines`: each contender, its options and fleet, and the load in requests/s that it sustained.
    Found on `date` by so many random `trials` on the seed `tuning`."""

    date: str
    trials: int
    tuning: int
    lines: tuple[tuple[Contender, float], ...]


def write(chosen: Chosen, path: Path) -> None:
    text = msgspec.json.encode(chosen, enc_hook=dict)  # some options are in a MappingProxyType
    path.write_bytes(msgspec.json.format(text) + b"\n")


def read(path: Path, workers: int) -> Chosen:
    """What was chosen for fleets of so many workers. `OSError`, or `ValueError` that says what is
    wrong with the file."""
    try:
        chosen = msgspec.json.decode(path.read_bytes(), type=Chosen)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    sizes = {one.shape.total for one, _ in chosen.lines}
    if sizes != {workers}:
        said = ", ".join(map(str, sorted(sizes))) or "no"
        raise ValueError(f"{path}: lines: fleets of {said} workers, --workers is {workers}")
    return chosen
