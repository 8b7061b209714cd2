"""Mutation run: does a test fail when a line of the code says something else?

`python scripts/mutate.py MODULE... [--sample N] [--seed N] [--limit SECONDS] [--tests PATH...]`
changes one comparison, operator, constant, branch or return value of a module at a time and runs
the unit tests of its package, those that name the module first. A mutant that no test notices is a
survivor. Files are left alone: the changed code is put in at import, in child processes as well.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip
_AT_IMPORT = """
import importlib.machinery, os
_changed, _source = os.environ["MUTANT_OF"], os.environ["MUTANT"]
_get_code = importlib.machinery.SourceFileLoader.get_code
def get_code(self, fullname):
    path = self.get_filename(fullname)
    if os.path.realpath(path) != _changed:
        return _get_code(self, fullname)
    with open(_source) as file:
        return compile(file.read(), path, "exec")
importlib.machinery.SourceFileLoader.get_code = get_code
"""


@dataclass(frozen=True)
class Mutant:
    """A module's source with one change, and where it is."""

    line: int
    change: str
    source: str


def mutants(source: str) -> list[Mutant]:
    """All that can be made of a module, in the order of its lines."""
    tree = ast.parse(source)
    found = []
    for number, node in enumerate(ast.walk(tree)):
        for place in range(len(list(_changes(node)))):
            changed = copy.deepcopy(tree)
            target = next(n for k, n in enumerate(ast.walk(changed)) if k == number)
            before = ast.unparse(node)
            list(_changes(target))[place](target)
            after = ast.unparse(target)
            line = getattr(node, "lineno", 0)
            text = f"{before.splitlines()[0]} -> {after.splitlines()[0]}"
            found.append(Mutant(line, text, ast.unparse(ast.fix_missing_locations(changed))))
    unique = {mutant.source: mutant for mutant in reversed(found)}
    return sorted(unique.values(), key=lambda mutant: (mutant.line, mutant.change))


def _changes(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Compare(ops=ops):
            yield from (_Operator("ops", k) for k, op in enumerate(ops) if type(op) in _OPERATORS)
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign() if type(node.op) in _OPERATORS:
            yield _Operator("op")
        case ast.UnaryOp(op=ast.Not()):
            yield _Without()
        case ast.If() | ast.IfExp() | ast.While():
            yield _Negated()
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield _ReturnNone()
        case ast.Constant(value=bool() | int() | float()):
            yield _OtherConstant()


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


class _Change:
    def __call__(self, node: ast.AST) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class _Operator(_Change):
    name: str
    place: int | None = None

    def __call__(self, node: ast.AST) -> None:
        held = getattr(node, self.name)
        if self.place is None:
            setattr(node, self.name, _OPERATORS[type(held)]())
        else:
            held[self.place] = _OPERATORS[type(held[self.place])]()


class _Without(_Change):
    def __call__(self, node: ast.AST) -> None:
        assert isinstance(node, ast.UnaryOp)
        node.operand = ast.UnaryOp(ast.Not(), node.operand)


class _Negated(_Change):
    def __call__(self, node: ast.AST) -> None:
        assert isinstance(node, ast.If | ast.IfExp | ast.While)
        node.test = ast.UnaryOp(ast.Not(), node.test)


class _ReturnNone(_Change):
    def __call__(self, node: ast.AST) -> None:
        assert isinstance(node, ast.Return)
        node.value = ast.Constant(None)


class _OtherConstant(_Change):
    def __call__(self, node: ast.AST) -> None:
        assert isinstance(node, ast.Constant)
        old = node.value
        node.value = not old if isinstance(old, bool) else old + 1  # type: ignore[operator]


def tests_of(module: Path) -> list[str]:
    """Unit tests of a module's package, those that name the module first."""
    parts = module.relative_to(ROOT).with_suffix("").parts
    package = parts[1] if parts[0] == "services" else parts[0]
    folder = ROOT / "tests" / "unit" / package
    files = sorted(folder.rglob("test_*.py"))
    naming = [file for file in files if ".".join(parts) in file.read_text()]
    return [str(file) for file in (*naming, *(f for f in files if f not in naming))]


def survives(module: Path, source: str, tests: Sequence[str], limit_s: float) -> bool:
    """Whether the tests pass with `source` in the place of a module. One that hangs does not."""
    with tempfile.TemporaryDirectory() as folder:
        mutant = Path(folder, "mutant.py")
        mutant.write_text(source)
        Path(folder, "sitecustomize.py").write_text(_AT_IMPORT)
        environment = {
            **os.environ,
            "MUTANT": str(mutant),
            "MUTANT_OF": str(module.resolve()),
            "PYTHONPATH": os.pathsep.join([folder, str(ROOT)]),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return child.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if child.poll() is None:
                os.killpg(child.pid, 9)
                child.wait()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("modules", nargs="+", type=Path, help="files of the code to change")
    parser.add_argument("--sample", type=int, default=20, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one mutant's tests")
    parser.add_argument("--tests", nargs="+", default=[], help="in the place of the package's")
    options = parser.parse_args(arguments)
    tried = left = 0
    for module in (path.resolve() for path in options.modules):
        tests = options.tests or tests_of(module)
        source = module.read_text()
        name = module.relative_to(ROOT)
        if not survives(module, ast.unparse(ast.parse(source)), tests, options.limit):
            print(f"{name}: its tests fail as it is, or take longer than --limit", flush=True)
            return 2
        every = mutants(source)
        for mutant in random.Random(options.seed).sample(every, min(options.sample, len(every))):
            survivor = survives(module, mutant.source, tests, options.limit)
            tried, left = tried + 1, left + survivor
            if survivor:
                print(f"SURVIVED {name}:{mutant.line}: {mutant.change}", flush=True)
    print(f"killed {tried - left} of {tried}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
