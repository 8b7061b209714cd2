"""Which code puts a callback into an object that exists already.

Found by names, as far as that goes: what is declared as `Callable`, and what is defined with `def`.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.syntax import Source

Sources = Sequence[Source]
Function = ast.FunctionDef | ast.AsyncFunctionDef
MAKING = ("__init__", "__post_init__", "__new__")


@dataclass
class Names:
    """Of the whole project: attributes that hold a callable, those that hold something else, and
    methods."""

    callables: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)


def aliases(sources: Sources) -> set[str]:
    """Names of the project's own types that are callables."""
    return {
        target.id
        for source in sources
        for node in source.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Callable[")
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def calls_back(annotation: ast.expr | None, known: set[str]) -> bool:
    """Whether a value of this type is a callable: not a container of them."""
    if annotation is None:
        return False
    if isinstance(annotation, ast.Name):  # most are
        return annotation.id in known
    parts = ast.unparse(annotation).split(" | ")
    return any(part.startswith("Callable[") or part in known for part in parts)


def names_of(sources: Sources, known: set[str]) -> Names:
    found = Names()
    for node in (node for source in sources for node in source.nodes):
        if isinstance(node, ast.AnnAssign):
            target = node.target
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            (found.callables if calls_back(node.annotation, known) else found.others).add(name)
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, Function):
                    (found.others if one.decorator_list else found.methods).add(one.name)
    found.methods -= found.others
    return found


def methods(source: Source) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    """Each function with the class whose method it is."""
    owners = {
        id(one): node for node in source.nodes if isinstance(node, ast.ClassDef)
        for one in node.body
    }  # fmt: skip
    for node in source.nodes:
        if isinstance(node, Function):
            yield owners.get(id(node)), node


def given(function: Function, known: set[str]) -> set[str]:
    """Parameters that are callables."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {one.arg for one in arguments if calls_back(one.annotation, known)}


def assigned(function: Function) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    yield target, node.value


def local_functions(function: Function) -> set[str]:
    return {one.name for one in ast.walk(function) if isinstance(one, Function)}


def late_callbacks(sources: Sources) -> list[str]:
    """Assignments that hand a callable to an object which exists already: by another one, or by
    itself in a method that sets it."""
    known = aliases(sources)
    names = names_of(sources, known)
    found = []
    for source in sources:
        for owner, function in methods(source):
            changes = list(assigned(function))
            local = local_functions(function) if changes else set()
            for target, value in changes:
                callback = is_callback(value, names, local | given(function, known))
                own = isinstance(target.value, ast.Name) and target.value.id == "self"
                if own and owner is not None:
                    given_here = isinstance(value, ast.Name) and value.id in given(function, known)
                    late = given_here and function.name not in MAKING
                else:
                    late = callback or target.attr in names.callables - names.others
                if late:
                    found.append(ast.unparse(target))
    return sorted(set(found))


def collecting(sources: Sources) -> list[str]:
    """Methods that put a callable which they are given into a container of their object."""
    known = aliases(sources)
    found = set()
    for owner, function in (one for source in sources for one in methods(source)):
        if owner is not None and function.name not in MAKING:
            names = given(function, known)
            if names and any(keeps(node, names) for node in ast.walk(function)):
                found.add(f"{owner.name}.{function.name}")
    return sorted(found)


def keeps(node: ast.AST, names: set[str]) -> bool:
    """Whether one of `names` goes into a container of `self` here."""
    match node:
        case ast.Call(func=ast.Attribute(value=place, attr="append" | "add"), args=[kept]):
            return is_own(place) and isinstance(kept, ast.Name) and kept.id in names
        case ast.Assign(targets=[ast.Subscript(value=place)], value=ast.Name(id=name)):
            return is_own(place) and name in names
        case _:
            return False


def is_own(place: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "self" for node in ast.walk(place))


def is_callback(value: ast.expr, names: Names, local: set[str]) -> bool:
    """A lambda, a function of this scope, or a method that is not called."""
    match value:
        case ast.Lambda():
            return True
        case ast.Name(id=name):
            return name in local
        case ast.Attribute(attr=name):
            return name in names.methods
        case _:
            return False
