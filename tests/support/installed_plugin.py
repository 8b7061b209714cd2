"""The package of examples/plugin, as pip would install it, without the minute that building takes
where there is no network."""

import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"


def install(folder: Path) -> Path:
    """Put the package and its entry points into `folder`, which is to stand on Python's path."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    for package in EXAMPLE.glob("*/__init__.py"):
        (folder / package.parent.name).symlink_to(package.parent)
    describe(folder, project["name"], project["entry-points"])
    return folder


def describe(folder: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    """What pip writes about a package that has these entry points."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines: list[str] = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
