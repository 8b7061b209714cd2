"""The mutation run changes one thing at a time, and tells a test that looks from one that does
not."""

import ast
from pathlib import Path

import pytest

from scripts import mutate
from scripts.mutate import ROOT, mutants, survives

SOURCE = '''
def larger(a: int, b: int) -> int:
    """Of two."""
    if not a < b and a:
        return a
    return b + 0
'''


def test_every_mutant_compiles_and_differs_from_the_source_and_the_others() -> None:
    made = mutants(SOURCE)
    sources = [mutant.source for mutant in made]
    assert len(set(sources)) == len(sources)
    assert ast.unparse(ast.parse(SOURCE)) not in sources
    for mutant in made:
        compile(mutant.source, "mutant", "exec")
    changes = "\n".join(mutant.change for mutant in made)
    for change in ("a < b -> a <= b", "b + 0 -> b - 0", "0 -> 1", "return a -> return None"):
        assert change in changes
    assert [mutant.line for mutant in made] == sorted(mutant.line for mutant in made)


def test_what_cannot_be_changed_gives_no_mutants() -> None:
    assert mutants("import os\n\n\ndef nothing() -> None:\n    return None\n") == []


@pytest.mark.parametrize(
    ("looks", "left"), [("assert limit() == 3", False), ("assert limit()", True)]
)
def test_a_test_that_looks_kills(looks: str, left: bool, tmp_path: Path) -> None:
    module = tmp_path / "limits_of_it.py"
    module.write_text("def limit():\n    return 3\n")
    test = tmp_path / "test_it.py"
    test.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        f"from limits_of_it import limit\ndef test_it():\n    {looks}\n"
    )
    (four,) = [m for m in mutants(module.read_text()) if m.change == "3 -> 4"]
    assert survives(module, module.read_text(), [str(test)], 60.0)
    assert survives(module, four.source, [str(test)], 60.0) is left


def test_one_that_hangs_is_noticed(tmp_path: Path) -> None:
    module = tmp_path / "waits_for_it.py"
    module.write_text("x = 1\n")
    test = tmp_path / "test_it.py"
    test.write_text("import time\ndef test_it():\n    time.sleep(60)\n")
    assert not survives(module, module.read_text(), [str(test)], 2.0)


def test_tests_that_name_a_module_come_first() -> None:
    found = mutate.tests_of(ROOT / "services" / "engine" / "scheduling" / "block_manager.py")
    assert "services.engine.scheduling.block_manager" in Path(found[0]).read_text()
    assert {Path(path).parts[-2] for path in found} == {"engine"}
    assert len(found) == len(set(found)) > 10
