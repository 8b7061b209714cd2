"""Files and functions stay short enough to be read at once."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "benchmarks", "connectors", "deploy", "examples", "protocol", "proxy", "scripts", "services",
    "triptych",
)  # fmt: skip
KINDS = (".py", ".sh", ".js")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
MOST_OF_A_FILE, MOST_OF_A_FUNCTION = 250, 60  # lines


def files(folders: Iterable[str]) -> Iterator[Path]:
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*")):
        own = "node_modules" not in path.parts and not path.name.endswith(GENERATED)
        if own and path.suffix in KINDS:
            yield path


def function_lines(source: str) -> Iterator[tuple[str, int]]:
    """Each function with its lines, decorators and docstring included, as docs/tree.md counts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - first + 1


def test_no_file_is_too_long() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in files(FOLDERS)}
    assert len(lines) > 500
    long = {str(p.relative_to(ROOT)): n for p, n in lines.items() if n > MOST_OF_A_FILE}
    assert long == {}


def test_no_function_is_too_long() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{name}": count
        for path in files(FOLDERS)
        if path.suffix == ".py"
        for name, count in function_lines(path.read_text())
        if count > MOST_OF_A_FUNCTION
    }
    assert long == {}


def test_a_function_is_counted_with_its_decorators_and_docstring() -> None:
    source = '@one\n@two\ndef f():\n    """It\n\n    does."""\n\n    async def g(): ...\n'
    assert dict(function_lines(source)) == {"f": 8, "g": 1}
