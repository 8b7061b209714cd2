"""A record with many fields says what each of them is: by its name alone few are understood."""

import ast
import re
from collections.abc import Iterator

from tests.unit.test_layers import ROOT, sources

FEW = 5  # fields that a class may leave to their names
RECORDS = ("Struct", "NamedTuple", "TypedDict")


def fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    """The public ones that stand in the class itself."""
    return [
        one for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        and not one.target.id.startswith("_") and "ClassVar" not in ast.unparse(one.annotation)
    ]  # fmt: skip


def is_record(node: ast.ClassDef) -> bool:
    """Or a class that adds its fields to those of one."""
    made = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    adds = not any(isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in node.body)
    return made or (bool(node.bases) and adds) or any(
        ast.unparse(base).endswith(RECORDS) for base in node.bases
    )  # fmt: skip


def is_told(field: ast.AnnAssign, lines: list[str], about: str) -> bool:
    """By a comment beside or above it, by its option's help, or by name in the class's text."""
    assert field.end_lineno is not None and isinstance(field.target, ast.Name)
    beside = any("  # " in line for line in lines[field.lineno - 1 : field.end_lineno])
    above = lines[field.lineno - 2].lstrip().startswith("#")
    helped = isinstance(field.value, ast.Call) and ast.unparse(field.value.func) != "field"
    name = field.target.id
    listed = rf"`{name}\b|^ *([\w, ]+, )?{name}(, [\w, ]+)?: "
    named = re.search(listed, about, re.MULTILINE)
    return beside or above or helped or named is not None


def untold(source: str) -> Iterator[str]:
    """CLASS.FIELD of each field that nothing explains."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and is_record(node):
            found = fields(node)
            inside = lines[node.lineno : node.end_lineno]
            comments = [line for line in inside if line.lstrip().startswith("#")]
            about = "\n".join([ast.get_docstring(node) or "", *comments])
            if len(found) > FEW:
                for one in found:
                    if not is_told(one, lines, about):
                        yield f"{node.name}.{ast.unparse(one.target)}"


def test_every_field_of_a_large_record_is_explained() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        for name in untold(path.read_text())
    }
    assert found == set()


EXAMPLE = '''
@dataclass
class Large:
    """`a`: one thing.

    b, c: others
    """

    a: int
    b: int
    c: int
    d: int  # meters
    # seconds
    e: int = 0
    f: int = 0
    _g: int = 0

class Small(NamedTuple):
    a: int
'''


def test_the_check_sees_a_field_without_words() -> None:
    assert list(untold(EXAMPLE)) == ["Large.f"]
