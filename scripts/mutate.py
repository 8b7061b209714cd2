"""Mutation run: does a test fail when a line of the code says something else?

`python -m scripts.mutate TARGET... [--sample N] [--seed N] [--minutes M] [--json FILE] [--again]
[--tests PATH...]` changes one comparison, operator, constant, branch or return
value at a time and runs the unit tests that call the changed function. A mutant that no test
notices is a survivor. A target is a package (connectors, engine, master, protocol, proxy) or a
file; N mutants of each are drawn. A run that stops after M minutes goes on where FILE ends; --again
tries its survivors once more. What
scripts/mutation/equivalents.json lists counts neither as killed nor as a survivor.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.mutation.equivalents import Equivalents
from scripts.mutation.forks import Change, Forks, preload
from scripts.mutation.mutants import Mutant, mutant, sites
from scripts.mutation.reach import Reach, Reached, Recorder
from scripts.mutation.results import Result, Tried, summary

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "connectors": ("connectors",),
    "engine": ("services/engine/*.py", "services/engine/scheduling", "services/engine/transfers"),
    "master": ("services/master",),
    "protocol": ("protocol",),
    "proxy": (
        "proxy/*.py", "proxy/fleet", "proxy/placement", "proxy/relay", "proxy/tokens",
        "proxy/upstream",
    ),
}  # fmt: skip
ALSO_TESTED_BY = {
    "engine": ("mock",),
    "master": ("admission", "membership"),
    "protocol": ("frontend", "grpc", "http", "membership", "proxy", "worker"),
    "proxy": ("admission",),
}
"""Folders of unit tests, besides a package's own, that call much of it."""
TESTS_S = 40.0
"""Seconds that the tests of one mutant may take together, by what they took when nothing was
changed: the quickest that call the changed function."""
RECORD_S = 600.0
RECORDED_AT_ONCE = 12


class Judge:
    """Says whether the tests notice a mutant."""

    def __init__(self, forks: Forks, limit_s: float) -> None:
        self._forks, self._limit_s = forks, limit_s
        self._sound: dict[str, bool] = {}  # failing tests, by whether they pass without a change

    def judge(self, module: Path, made: Mutant, tests: dict[str, float]) -> tuple[str, str]:
        """(status, the test that failed). A test that fails anyway does not count."""
        left = dict(tests)
        while left:
            limit_s = self._limit_s + 5 * sum(left.values())
            ended = self._forks.chosen(list(left), limit_s, Change(module, made.source))
            if ended.status == 0:
                return "survived", ""
            if ended.status is None:
                again = self._forks.chosen(list(left), limit_s)
                return ("unsure" if again.status is None else "killed"), "time"
            if not ended.failed:
                return "killed", "import" if ended.status > 0 else f"signal {-ended.status}"
            if self._passes(ended.failed):
                return "killed", ended.failed
            del left[ended.failed]
        return "survived", ""

    def _passes(self, test: str) -> bool:
        if test not in self._sound:
            self._sound[test] = self._forks.chosen([test], self._limit_s).status == 0
        return self._sound[test]


def modules_of(target: str) -> list[Path]:
    """The files that a package or a path stands for."""
    found: set[Path] = set()
    for pattern in PACKAGES.get(target, (target,)):
        for path in ROOT.glob(pattern):
            found.update(path.rglob("*.py") if path.is_dir() else [path])
    if not found:
        raise SystemExit(f"error: no code at {target}")
    return sorted(found)


def test_files(module: Path) -> list[str]:
    """Unit tests of a module's package and of those that use much of it, and tests of the unit and
    security suites that name the module; below the root."""
    path = module.relative_to(ROOT)
    package = path.parts[1] if path.parts[0] == "services" else path.parts[0]
    found: set[Path] = set()
    for folder in (package, *ALSO_TESTED_BY.get(package, ())):
        found.update((ROOT / "tests" / "unit" / folder).rglob("test_*.py"))
    for suite in ("unit", "security"):
        files = (ROOT / "tests" / suite).rglob("test_*.py")
        found.update(file for file in files if names(file.read_text(), module))
    return sorted(str(file.relative_to(ROOT)) for file in found)


def names(test: str, module: Path) -> bool:
    """Whether the source of a test names a module."""
    *above, name = module.relative_to(ROOT).with_suffix("").parts
    package = ".".join(above)
    beside = f"from {package} import" in test and re.search(rf"\b{name}\b", test)
    return f"{package}.{name}" in test or bool(beside)


def given_tests(paths: Sequence[Path]) -> list[Path]:
    """Files of tests that are named, or lie in a folder that is."""
    found = (path.rglob("test_*.py") if path.is_dir() else [path] for path in paths)
    return sorted({file.resolve() for files in found for file in files})


def drawn(modules: Sequence[Path], number: int, seed: int) -> Iterator[tuple[Path, Mutant]]:
    """Mutants of all modules together, of which every one is as likely."""
    every = [(module, site) for module in modules for site in sites(module.read_text())]
    for module, site in random.Random(seed).sample(every, min(number, len(every))):
        yield module, mutant(module.read_text(), site)


def chosen(module: Path, function: str, known: dict[str, Reached]) -> dict[str, float]:
    """Seconds of the tests that a change of `function` may concern, quickest first, within TESTS_S:
    those that call it. What no test calls may run on import, or in processes that tests start: then
    all that call a function of its module, or are in a file that names it."""
    path = str(module.relative_to(ROOT))
    calling = {n: test.seconds for n, test in known.items() if (path, function) in test.functions}
    naming = {
        name: test.seconds
        for name, test in known.items()
        if any(file == path for file, _ in test.functions)
        or names((ROOT / name.partition("::")[0]).read_text(), module)
    }
    found: dict[str, float] = {}
    spent = 0.0
    for name, seconds in sorted((calling or naming).items(), key=lambda item: item[1]):
        spent += seconds
        if found and spent > TESTS_S:
            break
        found[name] = seconds
    return found


def recorded(forks: Forks, reach: Reach, files: Sequence[str]) -> None:
    """Look at the tests of which nothing is known, a few files at a time."""
    new = reach.unknown(files)
    for some in (new[at : at + RECORDED_AT_ONCE] for at in range(0, len(new), RECORDED_AT_ONCE)):
        with tempfile.TemporaryDirectory(prefix="reach-") as folder:
            written = Path(folder, "reached.json")
            forks.run(some, Recorder(ROOT, written), RECORD_S, folder)
            reach.add(some, written)
        preload(reach.imported)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("targets", nargs="+", help="packages or files of the code to change")
    parser.add_argument("--sample", type=int, default=20, help="mutants of each target")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which to stop")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds more than tests take")
    parser.add_argument(
        "--json", type=Path, help="results so far, and of this run; a line for each"
    )
    parser.add_argument("--tests", type=Path, nargs="+", help="files and folders of tests to use")
    parser.add_argument("--again", action="store_true", help="try survivors of FILE once more")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.minutes * 60
    kept = options.json.with_suffix(".reach") if options.json else Path(tempfile.mkdtemp(), "reach")
    forks, reach, tried = Forks(ROOT), Reach(ROOT, kept), Tried(options.json)
    judge = Judge(forks, options.limit)
    for target in options.targets:
        modules = modules_of(target)
        files = sorted({file for module in modules for file in test_files(module)})
        if options.tests:
            files = [str(file.relative_to(ROOT)) for file in given_tests(options.tests)]
        preload(reach.imported)
        recorded(forks, reach, files)
        known = reach.tests(files)
        for module, made in drawn(modules, options.sample, options.seed):
            digest = hashlib.sha256(f"{module}{made.source}".encode()).hexdigest()[:16]
            before = tried.results.get(digest)
            if before and not (options.again and before.status == "survived"):
                continue
            if time.monotonic() > deadline:
                break
            tests = chosen(module, made.function, known)
            status, by = judge.judge(module, made, tests)
            name = str(module.relative_to(ROOT))
            result = Result(target, name, made.line, made.change, status, by, len(tests), digest)
            tried.add(result)
            if status != "killed":
                print(f"{status} {name}:{made.line}: {made.change}", flush=True)
    print(summary(list(tried.results.values()), Equivalents.read()))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
