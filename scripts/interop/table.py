"""Results as they are printed."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Row:
    part: str
    check: str
    holds: bool
    figure: str


@dataclass
class Table:
    """Checks in the order they were made; a part that breaks is a check that does not hold."""

    rows: list[Row] = field(default_factory=list)
    part: str = ""
    begun: float = field(default_factory=time.monotonic)

    def add(self, check: str, holds: bool, figure: object = "") -> None:
        self.rows.append(Row(self.part, check, holds, str(figure)))
        mark = "ok  " if holds else "FAIL"
        seconds = time.monotonic() - self.begun
        print(f"{seconds:5.0f} s  {mark}  {self.part}: {check}  {figure}", flush=True)

    @contextmanager
    def under(self, part: str) -> Iterator[None]:
        """Checks made inside belong to this part."""
        outer, self.part = self.part, part
        try:
            yield
        except (RuntimeError, AssertionError, OSError) as error:
            self.add("runs to its end", False, str(error))
        finally:
            self.part = outer

    @property
    def holds(self) -> bool:
        return bool(self.rows) and all(row.holds for row in self.rows)

    def markdown(self) -> str:
        lines = ["| part | check | holds | figure |", "|---|---|---|---|"]
        for row in self.rows:
            holds = "yes" if row.holds else "**no**"
            lines.append(f"| {row.part} | {row.check} | {holds} | {row.figure} |")
        return "\n".join(lines)

    def report(self, noun: str, file: Path | None) -> int:
        """Print all of it, and write it to `file` as JSON; the exit status of a script. `noun`:
        what a row is called."""
        said = f"every {noun} holds" if self.holds else f"some {noun}s FAIL"
        print(f"\n{self.markdown()}\n\n{said}")
        if file is not None:
            file.write_text(json.dumps([asdict(row) for row in self.rows], indent=1))
        return 0 if self.holds else 1
