"""Tests mirror the packages, and share what they need through tests/support."""

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.support.syntax import ROOT, uncollected

LEAST_LINES = 4  # a shorter helper is as well written twice


def test_each_folder_of_unit_tests_is_a_packages() -> None:
    folders = {path.name for path in (ROOT / "tests" / "unit").iterdir() if path.is_dir()}
    packages = {path.name for root in (ROOT, ROOT / "services") for path in root.iterdir()}
    assert folders - packages - {"__pycache__"} == set()


def helpers_of(source: str) -> Iterator[tuple[str, str]]:
    """(what it does, name) of each function or class that is no test; two that differ in their
    names and documentation alone do the same."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        name = node.name
        if name.startswith("test_") or (node.end_lineno or 0) - node.lineno + 1 < LEAST_LINES:
            continue
        node.name = ""
        if ast.get_docstring(node) is not None:
            del node.body[0]
        yield ast.dump(node), name


def test_no_helper_stands_in_two_files() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    with uncollected():
        for path in sorted((ROOT / "tests").rglob("*.py")):
            for body, name in helpers_of(path.read_text()):
                places[body].append(f"{path.relative_to(ROOT)}: {name}")
    assert [found for found in places.values() if len(found) > 1] == []


def test_the_check_sees_a_helper_under_another_name() -> None:
    first = 'def one(x: int) -> int:\n    """Here."""\n    y = x\n    return y\n'
    again = "def other(x: int) -> int:\n    y = x\n\n    return y\n"
    (found,), (same,) = helpers_of(first), helpers_of(again)
    assert (found[0] == same[0], found[1], same[1]) == (True, "one", "other")
