"""Command lines take options by their whole names: an abbreviation changes its meaning, or ends in
an error, once another option begins like it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "benchmarks", "connectors", "examples", "protocol", "proxy", "scripts", "services", "tests",
    "triptych",
)  # fmt: skip
_MAKES_PARSERS = ("ArgumentParser", "add_parser")


def parsers(path: Path) -> Iterator[ast.Call]:
    """The calls that make one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            made = node.func
            name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
            if name in _MAKES_PARSERS:
                yield node


def takes_abbreviations(call: ast.Call) -> bool:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    value = given.get("allow_abbrev")
    return not (isinstance(value, ast.Constant) and value.value is False)


def test_no_parser_takes_abbreviations() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    found = [(path.relative_to(ROOT), call) for path in files for call in parsers(path)]
    assert len(found) > 10
    assert [f"{path}:{call.lineno}" for path, call in found if takes_abbreviations(call)] == []
