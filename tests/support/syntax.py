"""The project's own code as syntax trees, for tests that read all of it."""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "connectors", "services", "proxy", "triptych", "benchmarks")


class Source(NamedTuple):
    """One file of Python."""

    path: Path  # from the repository's root
    text: str
    nodes: tuple[ast.AST, ...]  # of the whole tree, as `ast.walk` finds them; the module is first

    @property
    def tree(self) -> ast.Module:
        module = self.nodes[0]
        assert isinstance(module, ast.Module)
        return module


def sources() -> Iterator[Path]:
    """The files of the packages that are installed."""
    return (path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py")))


@contextmanager
def uncollected() -> Iterator[None]:
    """A collector that looks for garbage among a million nodes, again and again, takes longer than
    to parse them; trees have no circles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def parsed(text: str, path: Path = Path("example.py")) -> Source:
    return Source(path, text, tuple(ast.walk(ast.parse(text))))


def parsed_file(path: Path) -> Source:
    return parsed(path.read_text(), path.relative_to(ROOT))
