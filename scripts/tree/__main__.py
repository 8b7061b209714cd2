"""Prints lines by package, longest files and functions, comments, and the way of
a streamed chat with two pictures through the proxy."""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections import defaultdict
from pathlib import Path

from scripts.tree.request_way import counted

_DEPTH = {"services": 2}
_APART = ("tests", "scripts", "examples", "deploy")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts.tree", allow_abbrev=False)
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="checkout to look at")
    tree = parser.parse_args().tree.resolve()
    files = _files(tree)
    sources = [path for path in files if path.parts[0] not in _APART]
    lines = {path: (tree / path).read_text().splitlines() for path in files}
    print("| package | lines |\n|---|---:|")
    for package, count in sorted(_by_package(lines).items()):
        print(f"| `{package}` | {count:,} |")
    longest = max(sources, key=lambda path: len(lines[path]))
    length, where = max(_longest_function(tree, path) for path in sources)
    total = sum(len(lines[path]) for path in sources)
    comments = sum(line.lstrip().startswith("#") for path in sources for line in lines[path])
    way = counted(tree)
    print("\n| | |\n|---|---:|")
    for name, figure in (
        ("lines without tests, scripts, examples", f"{total:,}"),
        ("comments a thousand lines", f"{1000 * comments / total:.1f}"),
        ("longest file", f"{len(lines[longest])}, `{longest}`"),
        ("files over 250 lines", f"{sum(len(lines[path]) > 250 for path in sources)}"),
        ("longest function", f"{length}, `{where}`"),
        ("a streamed chat with two pictures: files of the proxy's process", f"{way.files}"),
        ("the same: calls between files", f"{way.calls_across}"),
    ):
        print(f"| {name} | {figure} |")


def _files(tree: Path) -> list[Path]:
    command = ["git", "-C", str(tree), "ls-files", "*.py"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return [Path(name) for name in found if not name.endswith(("_pb2.py", "_pb2_grpc.py"))]


def _by_package(lines: dict[Path, list[str]]) -> dict[str, int]:
    packages: dict[str, int] = defaultdict(int)
    for path, content in lines.items():
        depth = _DEPTH.get(path.parts[0], 1)
        packages[".".join(path.parent.parts[:depth])] += len(content)
    return packages


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Of a function with its decorators."""
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _longest_function(tree: Path, path: Path) -> tuple[int, str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        (node.end_lineno - first_line(node) + 1, f"{path}:{node.name}")
        for node in ast.walk(ast.parse((tree / path).read_text()))
        if isinstance(node, kinds) and node.end_lineno is not None
    ]
    return max(found, default=(0, str(path)))


main()
