"""What the wheel brings: the demonstration model, the page's files, types and the command."""

import configparser
import fnmatch
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("protocol", "connectors", "services", "proxy", "benchmarks", "triptych")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Of a copy: a build leaves folders beside its source."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "out"))
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-c", BUILD, str(out)]
    done = subprocess.run(
        command, cwd=source, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (file,) = out.iterdir()
    assert file.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(file)


def test_every_module_is_in_it_and_no_test(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for package in PACKAGES:
        ours = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
        assert ours <= names, package
    packages = {name.partition("/")[0] for name in names}
    assert {name for name in packages if not name.endswith(".dist-info")} == set(PACKAGES)


def test_files_that_are_no_modules_are_in_it(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    demo = {f"services/frontend/demo/{path.name}" for path in (ROOT / "models/demo").iterdir()}
    static = {
        str(path.relative_to(ROOT)) for path in (ROOT / "proxy" / "page" / "static").iterdir()
    }
    assert demo | static <= set(names)
    assert len(fnmatch.filter(names, "benchmarks/simulate/*.json")) > 0
    typed = {name.partition("/")[0] for name in fnmatch.filter(names, "*/py.typed")}
    assert typed == set(PACKAGES)


def test_it_brings_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    (scripts,) = fnmatch.filter(wheel.namelist(), "*.dist-info/entry_points.txt")
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(scripts).decode())
    assert dict(parser["console_scripts"]) == {"triptych": "triptych.commands:main"}
    assert fnmatch.filter(wheel.namelist(), "*.dist-info/licenses/LICENSE")
    (metadata,) = fnmatch.filter(wheel.namelist(), "*.dist-info/METADATA")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nVersion: {version}\n" in wheel.read(metadata).decode()
