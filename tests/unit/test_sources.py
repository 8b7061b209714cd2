"""How the project's own code is written. All of it is parsed once, for all that is asked about it:

- An object gets what it calls back when it is made: no code puts a callback into it afterwards, but
  by the few methods that `COLLECTING` names.
- A record with many fields says what each of them is: by its name alone few are understood.
- Files and functions stay short enough to be read at once.
- A name says one thing in a package: no two of its public classes share one.
- Command lines take options by their whole names: an abbreviation changes its meaning, or ends in
  an error, once another option begins like it.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.late_callbacks import collecting, late_callbacks
from tests.support.syntax import PACKAGES, ROOT, Source, parsed, parsed_file, uncollected

Sources = Sequence[Source]
FOLDERS = (*PACKAGES, "deploy", "examples", "scripts")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
MAKES_PARSERS = ("ArgumentParser", "add_parser")
MOST_OF_A_FILE, MOST_OF_A_FUNCTION = 250, 60  # lines
FEW = 5  # fields that a class may leave to their names
RECORDS = ("Struct", "NamedTuple", "TypedDict")
COLLECTING = {
    "BodyTurns.wait": "a body comes long after the turns are made, and waits once",
    "Beginnings.wait": "the same, by caller",
    "Roster.subscribe": "an observer is made of the fleet that it observes, and there are several",
    "SideClient.on": "KV and embeddings share a side channel: each brings handlers of its messages",
    "SideServer.on": "the same at a producer",
    "Ticket.when_ended": "as of a future: its queue makes the ticket, another waits for it",
}
"""Methods that may collect callbacks, and why the constructor cannot be given them."""


@pytest.fixture(scope="module")
def everything() -> Iterator[Sources]:
    """All files of Python but those of tests."""
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    with uncollected():
        yield [parsed_file(path) for path in files]


@pytest.fixture(scope="module")
def installed(everything: Sources) -> Sources:
    found = [source for source in everything if source.path.parts[0] in PACKAGES]
    assert len(found) > 500
    return found


def test_no_callback_is_assigned_after_construction(installed: Sources) -> None:
    assert late_callbacks(installed) == []


def test_the_methods_that_collect_callbacks_are_known(installed: Sources) -> None:
    assert collecting(installed) == sorted(COLLECTING)


CALLBACKS = """
Changed = Callable[[str], None]

class Cache:
    told: Changed | None = None
    size: int = 0

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.handlers: dict[str, Changed] = {}

    def on(self, name: str, handler: Changed) -> None:
        self.handlers[name] = handler

    def listen(self, listener: Changed) -> None:
        self.listener = listener

    def follow(self, name: str, follower: Changed) -> None:
        self.followers.append(follower)
        self.names.append(name)

    def grow(self) -> None:
        self.size += 1

class Log:
    def __init__(self, cache: Cache, size: int) -> None:
        cache.size = size
        cache.name = self.name
        cache.dropped = lambda name: None
        cache.stored = self.stored
        cache.told = choose()

    @property
    def name(self) -> str: ...

    def stored(self, name: str) -> None: ...

def joined(cache: Cache) -> None:
    def full() -> None: ...

    cache.full = full
"""


def test_the_check_sees_what_is_assigned_late() -> None:
    found = late_callbacks([parsed(CALLBACKS)])
    assert found == ["cache.dropped", "cache.full", "cache.stored", "cache.told", "self.listener"]


def test_the_check_sees_what_is_collected() -> None:
    assert collecting([parsed(CALLBACKS)]) == ["Cache.follow", "Cache.on"]


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


def untold(source: Source) -> Iterator[str]:
    """CLASS.FIELD of each field that nothing explains."""
    lines = source.text.splitlines()
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found = fields(node)
            if len(found) <= FEW or not is_record(node):
                continue
            inside = lines[node.lineno : node.end_lineno]
            comments = [line for line in inside if line.lstrip().startswith("#")]
            about = "\n".join([ast.get_docstring(node) or "", *comments])
            for one in found:
                if not is_told(one, lines, about):
                    yield f"{node.name}.{ast.unparse(one.target)}"


def test_every_field_of_a_large_record_is_explained(installed: Sources) -> None:
    assert {f"{source.path}: {name}" for source in installed for name in untold(source)} == set()


FIELDS = '''
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
    assert list(untold(parsed(FIELDS))) == ["Large.f"]


def function_lines(source: Source) -> Iterator[tuple[str, int]]:
    """Each function with its lines, decorators and docstring included, as docs/tree.md counts."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - first + 1


def test_no_file_is_too_long(everything: Sources) -> None:
    lines = {str(source.path): len(source.text.splitlines()) for source in written(everything)}
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".sh", ".js") and "node_modules" not in path.parts:
            lines[str(path.relative_to(ROOT))] = len(path.read_text().splitlines())
    assert len(lines) > 500
    assert {path: count for path, count in lines.items() if count > MOST_OF_A_FILE} == {}


def test_no_function_is_too_long(everything: Sources) -> None:
    long = {
        f"{source.path}:{name}": count
        for source in written(everything)
        for name, count in function_lines(source)
        if count > MOST_OF_A_FUNCTION
    }
    assert long == {}


def written(sources: Sources) -> list[Source]:
    """Those that no tool has made."""
    return [
        source
        for source in sources
        if not source.path.name.endswith(GENERATED) and "node_modules" not in source.path.parts
    ]


def test_a_function_is_counted_with_its_decorators_and_docstring() -> None:
    text = '@one\n@two\ndef f():\n    """It\n\n    does."""\n\n    async def g(): ...\n'
    assert dict(function_lines(parsed(text))) == {"f": 8, "g": 1}


def package_of(source: Source) -> str:
    """What lies in benchmarks and services, folder or file, is a package alone."""
    first, second, *_ = source.path.with_suffix("").parts
    return f"{first}.{second}" if first in ("benchmarks", "services") else first


def shared_names(sources: Iterable[Source]) -> dict[str, list[str]]:
    """Files by the class that several of a package have."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[f"{package_of(source)}: {node.name}"].append(str(source.path))
    return {name: files for name, files in places.items() if len(files) > 1}


def test_no_two_classes_of_a_package_share_a_name(installed: Sources) -> None:
    packages = {package_of(source) for source in installed}
    assert packages >= {"services.membership", "services.grpc", "benchmarks.bench_proxy", "proxy"}
    assert len(packages) > 25
    assert shared_names(installed) == {}


def test_the_check_sees_two_of_a_name() -> None:
    texts = {
        "services/a/x.py": "class A: ...\nclass _B: ...\n",
        "services/a/b/y.py": "class A: ...\nclass _B: ...\nclass C: ...\n",
        "services/b/z.py": "class A: ...\n",
    }
    found = shared_names(parsed(text, Path(path)) for path, text in texts.items())
    assert found == {"services.a: A": ["services/a/x.py", "services/a/b/y.py"]}


def parsers(source: Source) -> Iterator[ast.Call]:
    """The calls that make one."""
    for node in source.nodes:
        if isinstance(node, ast.Call):
            made = node.func
            name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
            if name in MAKES_PARSERS:
                yield node


def takes_abbreviations(call: ast.Call) -> bool:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    value = given.get("allow_abbrev")
    return not (isinstance(value, ast.Constant) and value.value is False)


def test_no_parser_takes_abbreviations(everything: Sources) -> None:
    """Nor one of a test, of which only files that may make one are parsed."""
    tests = [
        parsed_file(path)
        for path in (ROOT / "tests").rglob("*.py")
        if any(name in path.read_text() for name in MAKES_PARSERS)
    ]
    found = [(source, call) for source in (*everything, *tests) for call in parsers(source)]
    assert len(found) > 10
    wrong = [(source, call) for source, call in found if takes_abbreviations(call)]
    assert [f"{source.path}:{call.lineno}" for source, call in wrong] == []
