"""A name says one thing in a package: no two of its public classes share one."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each of these is one package, and so is each folder in those behind: a benchmark is read alone.
WHOLE = ("connectors", "protocol", "proxy", "triptych")
APART = ("benchmarks", "services")
PACKAGES = (
    *WHOLE,
    *(f"{one}.{path.parent.name}" for one in APART
      for path in sorted((ROOT / one).glob("*/__init__.py"))),
)  # fmt: skip


def public_classes(source: str) -> list[str]:
    body = ast.parse(source).body
    return [n.name for n in body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]


def shared_names(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Files by the name of a class that several of them have; `sources`: (file, its text)."""
    places: dict[str, list[str]] = defaultdict(list)
    for file, source in sources:
        for name in public_classes(source):
            places[name].append(file)
    return {name: files for name, files in places.items() if len(files) > 1}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_classes_of_a_package_share_a_name(package: str) -> None:
    files = sorted((ROOT / package.replace(".", "/")).rglob("*.py"))
    assert files
    assert shared_names((str(path.relative_to(ROOT)), path.read_text()) for path in files) == {}


def test_the_packages_are_found() -> None:
    found = {"services.membership", "services.grpc", "benchmarks.bench_proxy"}
    assert found <= set(PACKAGES) and len(PACKAGES) > 25


def test_the_check_sees_two_of_a_name() -> None:
    one, other = "class A: ...\nclass _B: ...\n", "class A: ...\nclass _B: ...\nclass C: ...\n"
    assert shared_names([("x", one), ("y", other)]) == {"A": ["x", "y"]}
