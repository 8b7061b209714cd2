"""What can be changed in a module: one comparison, operator, constant, branch or return value."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip
_UNSEEN = ("frozen", "slots", "kw_only")  # forbid what the type checker forbids too
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Site:
    """Where a module can be changed: the `place`-th change of its `number`-th node.

    `function` is the qualified name of the function around it, empty if it runs on import.
    """

    line: int
    number: int
    place: int
    function: str


@dataclass(frozen=True)
class Mutant:
    """A module's source with one change, and where it is."""

    line: int
    change: str
    source: str
    function: str


def sites(source: str) -> list[Site]:
    """In the order of lines."""
    tree = ast.parse(source)
    functions = dict(_functions(tree, "", ""))
    unseen = {
        id(keyword.value)
        for keyword in ast.walk(tree)
        if isinstance(keyword, ast.keyword) and keyword.arg in _UNSEEN
    }
    found = [
        Site(getattr(node, "lineno", 0), number, place, functions.get(id(node), ""))
        for number, node in enumerate(ast.walk(tree))
        if id(node) not in unseen
        for place in range(len(list(_changes(node))))
    ]
    return sorted(found, key=lambda site: (site.line, site.number, site.place))


def mutant(source: str, site: Site) -> Mutant:
    """The module with the change at `site`."""
    tree = ast.parse(source)
    target = next(node for k, node in enumerate(ast.walk(tree)) if k == site.number)
    text = _changed(target, site.place)
    return Mutant(site.line, text, ast.unparse(ast.fix_missing_locations(tree)), site.function)


def changes(source: str) -> set[str]:
    """`Mutant.change` of every site, without the mutants."""
    nodes = list(ast.walk(ast.parse(source)))
    return {_changed(copy.deepcopy(nodes[site.number]), site.place) for site in sites(source)}


def _changed(node: ast.AST, place: int) -> str:
    """Make the `place`-th change of a node; its first line before and after."""
    before = ast.unparse(node)
    list(_changes(node))[place](node)
    return f"{before.splitlines()[0]} -> {ast.unparse(node).splitlines()[0]}"


def _functions(node: ast.AST, prefix: str, function: str) -> Iterator[tuple[int, str]]:
    """(id, qualified name of the function around it) of a node and all below it."""
    yield id(node), function
    if not isinstance(node, _SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _functions(child, prefix, function)
        return
    name, inside = prefix + node.name, function
    inner = f"{name}."
    if not isinstance(node, ast.ClassDef):
        inner, inside = f"{name}.<locals>.", name
    body = {id(statement) for statement in node.body}
    for child in ast.iter_child_nodes(node):  # defaults and decorators run around the function
        at = (inner, inside) if id(child) in body else (prefix, function)
        yield from _functions(child, *at)


def _changes(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Compare(ops=ops):
            yield from (_Operator("ops", k) for k, op in enumerate(ops) if type(op) in _OPERATORS)
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign() if type(node.op) in _OPERATORS:
            yield _Operator("op")
        case ast.UnaryOp(op=ast.Not()):
            yield _Without()
        case ast.If() | ast.IfExp() | ast.While() if not _is_not(node.test):
            yield _Negated()
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield _ReturnNone()
        case ast.Constant(value=bool() | int() | float()):
            yield _OtherConstant()


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_not(test: ast.expr) -> bool:
    """Negated twice, which is the change of the `not` itself."""
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


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
