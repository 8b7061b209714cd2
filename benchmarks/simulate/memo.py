"""Outcomes of runs, kept in a folder, so that a study that was ended goes on where it was."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

import benchmarks.simulate
from benchmarks.simulate.metrics import Outcome

# What a run's outcome depends on, beside its arguments.
_CODE = ("benchmarks/simulate", "connectors", "protocol", "services/admission",
         "services/engine/config.py", "services/engine/messages.py", "services/engine/reports.py",
         "services/engine/scheduling", "services/engine/transfers", "services/master",
         "services/membership", "services/mock")  # fmt: skip
# and on these it does not
_SHOWS = ("benchmarks/simulate/__main__.py", "benchmarks/simulate/chosen.py",
          "benchmarks/simulate/report.py", "benchmarks/simulate/study.py",
          "benchmarks/simulate/study_results.py", "benchmarks/simulate/tuning.py")  # fmt: skip
# And on these only where workers change their roles.
_MOVES = ("services/master/fleet/role_mover.py", "services/master/fleet/wanted_workers.py")


class Memo:
    """`folder` None: nothing is kept. Runs are deterministic, so one that was made is not made
    again: as long as the code of simulator, master and engine is the same."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._code = _digests() if folder is not None else ("", "")  # of what runs now
        self.found = 0  # runs that were not made again

    def of(self, key: object, run: Callable[[], Outcome], *, moves: bool = True) -> Outcome:
        """`key`: the run's arguments; what `repr` writes of it is what counts. `moves`: whether
        workers may change their roles in it."""
        if self._folder is None:
            return run()
        code = self._code[moves]
        name = hashlib.sha256(f"{code} {key!r}".encode()).hexdigest()[:32]
        path = self._folder / f"{name}.msgpack"
        if path.exists():
            self.found += 1
            return msgspec.msgpack.decode(path.read_bytes(), type=Outcome)
        outcome = run()
        self._folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(msgspec.msgpack.encode(outcome))
        part.rename(path)
        return outcome


def _digests() -> tuple[str, str]:
    """Of the code of runs in which no worker changes its role, and of the others."""
    root = Path(benchmarks.simulate.__path__[0]).parents[1]
    digest, moving = hashlib.sha256(), hashlib.sha256()
    apart, shows = {root / path for path in _MOVES}, {root / path for path in _SHOWS}
    for name in _CODE:
        place = root / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if path not in shows:
                (moving if path in apart else digest).update(path.read_bytes())
    return digest.hexdigest(), f"{digest.hexdigest()} {moving.hexdigest()}"
