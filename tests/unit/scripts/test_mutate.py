"""The mutation run changes one thing at a time, and tells a test that looks from one that does
not."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import mutate
from scripts.mutate import PACKAGES, ROOT, chosen, drawn, modules_of
from scripts.mutation.equivalents import Equivalents
from scripts.mutation.mutants import Mutant, changes, mutant, sites
from scripts.mutation.reach import Reached
from scripts.mutation.results import Result, Tried, summary

SOURCE = '''
LIMIT = 3
def larger(a: int, b: int = 7) -> int:
    """Of two."""
    if not a < b and a:
        return a
    return b + 0
class Kept:
    def inner(self) -> bool:
        def deep() -> bool:
            return True
        return deep()
'''

PROJECT = {
    "limits.py": "def limit():\n    return 3\n\ndef unused():\n    return 4\n",
    "test_looks.py": "from limits import limit\ndef test_it():\n    assert limit() == 3\n",
    "test_blind.py": "from limits import limit\ndef test_it():\n    assert limit()\n",
    "test_child.py": (
        "import subprocess, sys\ndef test_it():\n"
        "    command = 'import limits, sys; sys.exit(limits.limit())'\n"
        "    assert subprocess.run([sys.executable, '-c', command]).returncode == 3\n"
    ),
    "test_slow.py": "import time\ndef test_it():\n    time.sleep(60)\n",
}

CHECK = """
import json, sys
from pathlib import Path
from scripts.mutation.forks import Change, Forks
from scripts.mutation.reach import Reach, Recorder

root = Path(sys.argv[1])
forks, module = Forks(root), root / "limits.py"
four = Change(module, "def limit():\\n    return 4\\n")
found = {
    name: forks.chosen([f"test_{name}.py::test_it"], limit_s, four)
    for name, limit_s in (("looks", 60.0), ("blind", 60.0), ("child", 60.0), ("slow", 1.0))
}
unchanged = forks.chosen(["test_looks.py::test_it"], 60.0).status
files = ["test_looks.py", "test_blind.py"]
forks.run(files, Recorder(root, root / "reached"), 60.0, str(root))
reach = Reach(root, root / "kept")
reach.add(files, root / "reached")
(root / "test_blind.py").write_text("def test_it():\\n    pass\\n")
print(json.dumps({
    "ended": {name: (ended.status, ended.failed) for name, ended in found.items()},
    "unchanged": unchanged,
    "called": {name: sorted(test.functions) for name, test in reach.tests(files).items()},
    "unknown": reach.unknown(files),
}))
"""


def made(source: str) -> list[Mutant]:
    return [mutant(source, site) for site in sites(source)]


def test_every_mutant_compiles_and_differs_from_the_source_and_the_others() -> None:
    found = made(SOURCE)
    sources = [one.source for one in found]
    assert len(set(sources)) == len(sources)
    assert ast.unparse(ast.parse(SOURCE)) not in sources
    for one in found:
        compile(one.source, "mutant", "exec")
    told = "\n".join(one.change for one in found)
    for change in ("a < b -> a <= b", "b + 0 -> b - 0", "0 -> 1", "return a -> return None"):
        assert change in told
    assert [one.line for one in found] == sorted(one.line for one in found)


def test_changes_are_those_of_the_mutants() -> None:
    for source in (SOURCE, "@dataclass(frozen=True)\nclass A:\n    limit: int = 3\n"):
        assert changes(source) == {one.change for one in made(source)}


def test_a_mutant_names_the_function_that_runs_it() -> None:
    by_change = {one.change: one.function for one in made(SOURCE)}
    assert by_change["3 -> 4"] == by_change["7 -> 8"] == ""
    assert by_change["a < b -> a <= b"] == "larger"
    assert by_change["return True -> return None"] == "Kept.inner.<locals>.deep"


def test_what_cannot_be_changed_gives_no_mutants() -> None:
    assert made("@dataclass(frozen=True)\nclass A:\n    pass\n") == []
    assert made("class A(Struct, kw_only=True):\n    pass\n") == []
    assert made("import os\n\n\ndef nothing() -> None:\n    return None\n") == []


def test_forks_see_the_change_and_nothing_else_does(tmp_path: Path) -> None:
    """In a process of its own, which forks: also where tests start processes, and where one
    hangs."""
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    found = subprocess.run(
        [sys.executable, "-c", CHECK, str(tmp_path)], cwd=ROOT, text=True, check=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    said = json.loads(found.stdout)
    assert said["ended"] == {
        "looks": [1, "test_looks.py::test_it"],
        "blind": [0, ""],
        "child": [1, "test_child.py::test_it"],
        "slow": [None, ""],
    }
    assert said["unchanged"] == 0
    assert (tmp_path / "limits.py").read_text() == PROJECT["limits.py"]
    assert said["called"]["test_looks.py::test_it"] == [
        ["limits.py", "limit"], ["test_looks.py", "test_it"]
    ]  # fmt: skip
    assert said["unknown"] == ["test_blind.py"]


def test_tests_that_call_the_function_are_chosen_and_the_quickest_first() -> None:
    module = ROOT / "services" / "engine" / "scheduling" / "block_manager.py"
    path, file = str(module.relative_to(ROOT)), "tests/unit/engine/test_block_manager.py"
    known = {
        f"{file}::slow": Reached(2.0, {(path, "BlockManager.free")}),
        f"{file}::quick": Reached(1.0, {(path, "BlockManager.free")}),
        f"{file}::endless": Reached(1e9, {(path, "BlockManager.free")}),
        f"{file}::other": Reached(0.1, {(path, "BlockManager.other")}),
        "tests/unit/engine/test_process.py::x": Reached(0.1, {("other.py", "f")}),
    }
    assert list(chosen(module, "BlockManager.free", known)) == [f"{file}::quick", f"{file}::slow"]
    assert list(chosen(module, "", known)) == [f"{file}::{n}" for n in ("other", "quick", "slow")]
    assert set(chosen(module, "never", known)) == {
        f"{file}::{n}" for n in ("other", "quick", "slow")
    }


def test_each_package_has_code_and_a_sample_is_its_seeds() -> None:
    for package in PACKAGES:
        assert len(modules_of(package)) > 5
    covered = {path.relative_to(ROOT) for package in PACKAGES for path in modules_of(package)}
    for room in ("proxy/relay/relay.py", "proxy/upstream/client.py", "services/engine/process.py"):
        assert Path(room) in covered
    modules = modules_of("protocol/keys.py")
    first, again, other = (list(drawn(modules, 5, seed)) for seed in (1, 1, 2))
    assert first == again != other and len(first) == 5
    with pytest.raises(SystemExit, match="no code at nothing"):
        modules_of("nothing")


def test_tests_that_use_a_module_are_found_beyond_its_folder() -> None:
    files = mutate.test_files(ROOT / "protocol" / "keys.py")
    assert {"protocol", "proxy", "frontend"} <= {Path(file).parent.name for file in files}
    assert all((ROOT / file).exists() for file in files) and len(set(files)) == len(files)


def test_a_test_names_a_module_in_either_form() -> None:
    module = ROOT / "protocol" / "keys.py"
    for test in ("from protocol.keys import short", "from protocol import (\n    keys,\n)"):
        assert mutate.names(test, module)
    for test in ("keys", "from protocol import errors", "from protocol.errors import keys"):
        assert not mutate.names(test, module)


def test_results_are_kept_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    for digest, status in (("a", "survived"), ("b", "killed"), ("c", "unsure"), ("a", "killed")):
        Tried(file).add(Result("protocol", "x.py", 1, "0 -> 1", status, "", 1, digest))
    Tried(file).add(Result("protocol", "x.py", 1, "1 -> 2", "survived", "", 1, "d"))
    results = list(Tried(file).results.values())
    assert summary(results, Equivalents({})) == "protocol: killed 2 of 3 (67%), 1 unsure"
    same = Equivalents({"x.py": {"1 -> 2": "why"}, "y.py": {"0 -> 1": "why"}})
    assert summary(results, same) == "protocol: killed 2 of 2 (100%), 1 equivalent, 1 unsure"
    assert summary([], same) == ""


def test_changes_that_make_no_difference_are_changes_of_the_code() -> None:
    found: dict[str, set[str]] = {}
    for module, change, reason in Equivalents.read():
        path = ROOT / module
        if module not in found:
            found[module] = changes(path.read_text() if path.exists() else "")
        assert change in found[module], (module, change)
        assert len(reason) > 10, (module, change)
