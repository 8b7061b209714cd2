"""Parts that other packages bring, found by the name that a flag or a model gives them.

A package offers a part as an entry point, in its pyproject.toml:

    [project.entry-points."triptych.policies"]
    nearest = "my_package.policies:Nearest"

`examples/plugin` has one of each group, and its README says what each must be. Built-in names come
first; of what is installed only the part that is named is imported.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from protocol.errors import ConfigError

Group = Literal[
    "encoders",
    "families",
    "policies",
    "reasoning_parsers",
    "scheduling_policies",
    "tool_parsers",
    "transports",
]


def plugin_names(group: Group) -> tuple[str, ...]:
    """Names of the parts that installed packages offer, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=f"triptych.{group}")}))


def find_plugin(group: Group, name: str) -> Any | None:
    """The part of that name, None if no package offers one.

    `ConfigError` if it cannot be imported, or if several packages offer one.
    """
    found = list(entry_points(group=f"triptych.{group}", name=name))
    if not found:
        return None
    if len(found) > 1:
        packages = " and ".join(sorted(_package(point) for point in found))
        raise ConfigError(f"{packages} both offer '{name}' as triptych.{group}: remove one of them")
    try:
        return found[0].load()
    except Exception as error:  # any error of its modules while they are imported
        raise ConfigError(
            f"'{name}' of {_package(found[0])} (triptych.{group}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error


def find_class(group: Group, name: str, base: type) -> Any | None:
    """As `find_plugin`, for a subclass of `base`; `ConfigError` if it is something else."""
    found = find_plugin(group, name)
    if found is None or (isinstance(found, type) and issubclass(found, base)):
        return found
    raise ConfigError(
        f"'{name}' (triptych.{group}) is no subclass of {base.__module__}.{base.__qualname__}"
    )


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
