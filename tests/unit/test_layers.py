"""Imports go downward only, and the parts that must start fast start without torch."""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.syntax import ROOT, sources, uncollected

Rooms = tuple[tuple[str, ...], ...]
ROLES = ("encoder", "prefill", "decode", "pdfusion")

# What each package may import of this project. A longer name wins over a shorter one.
ALLOWED = {
    "protocol": {"protocol"},
    "connectors": {"connectors", "protocol"},
    "services.frontend": {"services.frontend", "protocol"},
    "services.admission": {"services.admission", "protocol"},
    "services.http": {"services.http", "services.frontend", "protocol"},
    "services.grpc": {"services.grpc", "services.http", "services.frontend", "protocol"},
    "services.membership": {"services.membership", "services.http", "protocol"},
    # The frontend decodes pictures in one canonical way, for the encoder too.
    "services.engine": {
        "services.engine", "services.frontend", "services.membership", "connectors", "protocol",
    },
    "services.worker": {
        "services.worker", "services.engine", "services.frontend", "services.http",
        "services.grpc", "services.membership", "connectors", "protocol",
    },
    "services.master": {
        "services.master", "services.admission", "services.http", "protocol",
    },
    # Inside the master: what is pure lies below what has sockets.
    "services.master.config": {"services.master.policy_options", "protocol"},
    "services.master.policy_options": {"protocol"},
    "services.master.index": {"services.master.index", "protocol"},
    "services.master.fleet": {
        "services.master.fleet", "services.master.index", "services.master.config", "protocol",
    },
    "services.master.placement": {
        "services.master.placement", "services.master.fleet", "services.master.index",
        "services.master.config", "services.admission", "protocol",
    },
    "services.master.listener": {
        "services.master.placement", "services.master.fleet", "protocol",
    },
    "services.master.master": {
        "services.master.listener", "services.master.placement", "services.master.fleet",
        "services.master.index", "services.master.config", "services.admission", "protocol",
    },
    "services.master.events": {
        "services.master.events", "services.master.fleet", "services.master.config", "protocol",
    },
    "services.master.replication": {
        "services.master.replication", "services.master.master", "services.master.placement",
        "services.master.fleet", "services.master.index", "services.master.config", "protocol",
    },
    "services.master.probing": {
        "services.master.probing", "services.master.replication", "services.master.fleet",
        "services.master.config", "protocol",
    },
    "services.mock": {
        "services.mock", "services.engine.scheduling", "services.engine.transfers",
        "services.engine.reports", "services.engine.config", "services.http", "services.frontend",
        "services.membership", "connectors", "protocol",
    },
    "proxy": {
        "proxy", "services.admission", "services.frontend", "services.http", "services.grpc",
        "protocol",
    },
    **{f"services.{role}": {f"services.{role}", "services.worker"} for role in ROLES},
    "services": set(),
    "benchmarks": {"benchmarks", "protocol", "connectors", "services", "proxy"},
    # It starts processes of all the others, and imports none before it is asked to.
    "triptych": {"triptych", "services.frontend", "protocol"},
}  # fmt: skip
# Rooms of one package, lowest first: each imports itself and those above it in this list. A line
# may name several that do not know each other. A longer name wins over a shorter one.
PROXY = (
    ("proxy.worker_options", "proxy.limit_options", "proxy.model_options", "proxy.flag_scopes",
        "proxy.siblings", "proxy.processes"),
    ("proxy.config", "proxy.model_figures", "proxy.request_log"),
    ("proxy.fleet.worker",),
    ("proxy.upstream", "proxy.request_state"),
    ("proxy.placement.master_client",),
    ("proxy.fleet",),
    ("proxy.metrics", "proxy.admission", "proxy.single_flight"),
    ("proxy.placement",),
    ("proxy.dispatch",),
    ("proxy.tokens",),
    ("proxy.gateway",),
    ("proxy.relay",),
    ("proxy.fleet.admin_api", "proxy.page", "proxy.rtp_status", "proxy.readiness"),
    ("proxy.api_routes",),
    ("proxy.app", "proxy.assembly"),
    ("proxy.__main__",),
)  # fmt: skip
ENGINE = (
    ("services.engine.config", "services.engine.environment",
        "services.engine.containment", "services.engine.core_share", "services.engine.profiling",
        "services.engine.publishing"),
    ("services.engine.messages",),
    ("services.engine.scheduling",),
    ("services.engine.transfers", "services.engine.pulse"),
    ("services.engine.scheduling.generate_core",),
    ("services.engine.reports",),
    ("services.engine.attention", "services.engine.drafting", "services.engine.sampling"),
    ("services.engine.model",),
    ("services.engine.drafting.draft_model",),
    ("services.engine.drafting.drafters",),
    ("services.engine.hardware",),
    ("services.engine.kv_memory",),
    ("services.engine.loaded_model",),
    ("services.engine.parts",),
    ("services.engine.assembly",),
    ("services.engine.engine",),
    ("services.engine.process",),
)  # fmt: skip
OURS = (
    "protocol", "connectors", "services", "proxy", "benchmarks", "triptych", "tests", "scripts",
)  # fmt: skip
LIGHT = (  # imported in this order: what is kept out of the first ones is in later ones
    "services.engine.scheduling.generate_core", "services.engine.scheduling.encode_queue",
    "services.master.__main__", "services.master.probing.client",
    "protocol.generate", "services.admission.queue", "services.frontend.render",
    "services.frontend.clips.child",
    "services.http.server", "proxy.__main__",
    "services.worker.main", "services.mock.main",
    "benchmarks.simulate.simulation", "triptych.launch.serve",
    "services.engine.reports", "services.engine.scheduling.block_manager",
    "services.engine.scheduling.embedding_cache", "services.engine.scheduling.image_prefetch",
    "services.engine.scheduling.rates", "services.engine.scheduling.scheduler",
)  # fmt: skip


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Module(NamedTuple):
    """What is asked about one of the project's modules."""

    name: str
    imports: tuple[str, ...]
    mutable: tuple[str, ...]  # names of the module that hold what code could change


Project = Mapping[str, Module]


@pytest.fixture(scope="module")
def project() -> Project:
    """All modules by name, each parsed once for all checks."""
    with uncollected():
        return {module.name: module for module in map(read, sources())}


def read(path: Path) -> Module:
    """Only statements are looked into: no import is elsewhere."""
    tree = ast.parse(path.read_text())
    return Module(module_name(path), tuple(_imports_in(tree, path)), tuple(mutable_names(tree)))


def _imports_in(parent: ast.AST, path: Path) -> Iterator[str]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _imports_in(node, path)


def layer_of(module: str) -> str | None:
    fitting = [name for name in ALLOWED if module == name or module.startswith(f"{name}.")]
    return max(fitting, key=len) if fitting else None


def test_imports_go_downward(project: Project) -> None:
    wrong = []
    for module in project.values():
        layer = layer_of(module.name)
        if layer is None:
            assert not module.imports, f"{module.name}: code outside every layer"
            continue
        wrong += [
            f"{module.name}, in {layer}, must not import {name}"
            for name in module.imports
            if name.split(".")[0] in OURS
            and not any(name == a or name.startswith(f"{a}.") for a in ALLOWED[layer])
        ]
    assert len(project) > 500 and wrong == []


def layer_in(rooms: Rooms, module: str) -> tuple[int, str]:
    """(how far down, name) of the room that a module is in."""
    fitting = [
        (len(name), level, name)
        for level, names in enumerate(rooms)
        for name in names
        if module == name or module.startswith(f"{name}.")
    ]
    assert fitting, f"{module} is in no room: add it to the list"
    _, level, name = max(fitting)
    return level, name


@pytest.mark.parametrize(
    ("package", "rooms"), [("services.engine", ENGINE), ("proxy", PROXY)], ids=["engine", "proxy"]
)
def test_a_package_has_layers_of_its_own(package: str, rooms: Rooms, project: Project) -> None:
    wrong, inside = [], [name for name in project if name.startswith(f"{package}.")]
    for module in inside:
        level, name = layer_in(rooms, module)
        for imported in project[module].imports:
            if imported.startswith(f"{package}.") and imported != f"{package}.__init__":
                below, other = layer_in(rooms, imported)
                if other != name and below >= level:
                    wrong.append(f"{module} must not import {imported}")
    assert len(inside) > 50 and wrong == []


def test_the_two_dialects_do_not_know_each_other(project: Project) -> None:
    dialects = ("proxy.tokens", "proxy.relay")
    for ours, theirs in (dialects, dialects[::-1]):
        inside = [m for name, m in project.items() if f"{name}.".startswith(f"{ours}.")]
        assert inside
        for module in inside:
            assert not [n for n in module.imports if n.startswith(theirs)], module.name


def imports_of_ours(project: Project) -> dict[str, set[str]]:
    """Module → modules of this project that it imports, under TYPE_CHECKING too."""
    return {
        name: {found for n in module.imports if (found := nearest(n, project)) not in ("", name)}
        for name, module in project.items()
    }


def nearest(name: str, modules: Collection[str]) -> str:
    """The module that an imported name lies in, "" if it is not ours."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def circle(imports: Mapping[str, set[str]]) -> set[str]:
    """What is left once all that imports nothing of the rest has been taken away, again and again:
    the modules of circles, and those that import them."""
    left = {name: set(found) for name, found in imports.items()}
    while done := {name for name, found in left.items() if not found & left.keys()}:
        left = {name: found for name, found in left.items() if name not in done}
    return set(left)


def test_no_import_circles(project: Project) -> None:
    assert circle(imports_of_ours(project)) == set()


def test_the_check_sees_a_circle() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"a", "b", "c"}


def test_the_check_sees_a_forbidden_import() -> None:
    assert layer_of("services.engine.scheduling.generate_core") == "services.engine"
    assert layer_of("services.prefill.__main__") == "services.prefill"
    assert layer_of("services.master.fleet.pool") == "services.master.fleet"
    assert layer_of("services.master.api.rpc") == "services.master"
    assert not any("services.worker".startswith(a) for a in ALLOWED["services.engine"])


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Module → all that is loaded once it, and those before it, have been imported by a process."""
    code = "".join(f"import sys, {module}\nprint(*sys.modules)\n" for module in LIGHT)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(LIGHT, map(_words, done.stdout.splitlines()), strict=True))


def test_what_must_start_fast_starts_without_torch(loaded: dict[str, set[str]]) -> None:
    heavy = {"torch", "transformers", "triton"}
    assert {module: found & heavy for module, found in loaded.items() if found & heavy} == {}


def test_the_master_starts_without_an_http_client(loaded: dict[str, set[str]]) -> None:
    assert "aiohttp" not in loaded["services.master.__main__"]
    assert "aiohttp" in loaded["services.master.probing.client"]


@pytest.mark.parametrize("module", ["generate_core", "encode_queue"])
def test_the_scheduling_core_has_no_sockets(module: str, loaded: dict[str, set[str]]) -> None:
    assert "zmq" not in loaded[f"services.engine.scheduling.{module}"]
    assert "zmq" in loaded["services.worker.main"]


def _words(line: str) -> set[str]:
    return set(line.split())


def mutable_names(tree: ast.Module) -> Iterator[str]:
    """Module-level names that hold a list, dict or set that code could change."""
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        constant = all(n.isupper() or n.strip("_").isupper() for n in names)
        listed = isinstance(value, ast.List | ast.Set | ast.ListComp) and names != ["__all__"]
        if listed or (isinstance(value, ast.Dict) and not constant):
            yield ", ".join(names)


def test_no_module_level_mutable_state(project: Project) -> None:
    assert {name: module.mutable for name, module in project.items() if module.mutable} == {}


def test_the_check_sees_mutable_state() -> None:
    text = "A = {1: 2}\nb = {1: 2}\nC = [1]\n__all__ = ['A']\nD = (1,)\ne: set[int] = {1}\n"
    assert [*mutable_names(ast.parse(text))] == ["b", "C", "e"]
