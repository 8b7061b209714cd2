"""Configuration: a frozen dataclass per process, resolved once from file, environment and flags.

Later sources win: defaults, then the file named by `--config` (YAML), then environment variables
`TRIPTYCH_<NAME>`, then flags. A bad value is a `ConfigError` that names its source.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from protocol.errors import ConfigError

_T = TypeVar("_T")
ENV_PREFIX = "TRIPTYCH_"


def option(
    default: Any, help: str, *, env: str | None = None, choices: Any = None,
    least: float | None = None, most: float | None = None,
) -> Any:  # fmt: skip
    """A dataclass field that is also a flag; `env` is a second name of its variable. Words are
    one of `choices` in any case; numbers lie between `least` and `most`."""
    metadata = {"help": help, "env": env, "choices": choices, "least": least, "most": most}
    return dataclasses.field(default=default, metadata=metadata)


def resolve(
    kind: type[_T],
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    prog: str = "",
) -> _T:
    """Build `kind` from all sources. Flags are the field names with dashes."""
    types = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    flags = vars(_parser(fields, types, prog).parse_args(argv))
    values: dict[str, Any] = {}
    path = flags.pop("config", None)
    if path:
        values |= _from_file(Path(path), fields)
    values |= _from_environment(environ if environ is not None else os.environ, fields)
    values |= flags
    for name, value in values.items():
        values[name] = _cast(name, value, types[name], fields[name].metadata)
    return kind(**values)


def _parser(
    fields: Mapping[str, dataclasses.Field[Any]], types: Mapping[str, Any], prog: str
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog or None, argument_default=argparse.SUPPRESS)
    parser.add_argument("--config", help="YAML file with the same names")
    for name, field in fields.items():
        flag = "--" + name.replace("_", "-")
        default = f"{field.metadata.get('help', '')} (default: {field.default!r})".replace(
            "%", "%%"
        )
        if types[name] is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=default)
        else:
            parser.add_argument(flag, help=default, metavar=name.upper())
    return parser


def _from_file(path: Path, fields: Mapping[str, dataclasses.Field[Any]]) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: a mapping of names to values is expected")
    values = {str(name).replace("-", "_"): value for name, value in content.items()}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ConfigError(f"--config {path}: unknown names {', '.join(unknown)}")
    return values


def _from_environment(
    environ: Mapping[str, str], fields: Mapping[str, dataclasses.Field[Any]]
) -> dict[str, Any]:
    values = {}
    for name, field in fields.items():
        for variable in (field.metadata.get("env"), ENV_PREFIX + name.upper()):
            if variable and variable in environ:
                values[name] = environ[variable]
    return values


def _cast(name: str, value: Any, kind: Any, metadata: Mapping[str, Any]) -> Any:
    try:
        result = _cast_bool(value) if kind is bool else kind(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name}: {value!r} is not {_words(kind)}") from None
    if metadata.get("choices"):
        return _choose(name, result, metadata["choices"])
    least, most = metadata.get("least"), metadata.get("most")
    if least is not None or most is not None:
        _check_range(name, result, -math.inf if least is None else least, most)
    return result


def _choose(name: str, value: Any, choices: Sequence[Any]) -> Any:
    found = {str(choice).lower(): choice for choice in choices}
    if str(value).lower() not in found:
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(map(str, choices))}")
    return found[str(value).lower()]


def _check_range(name: str, value: float, least: float, most: float | None) -> None:
    """No range has room for what is not a number."""
    most = math.inf if most is None else most
    if not least <= value <= most:
        raise ConfigError(f"{name}: {value!r} is not between {least} and {most}")


def _cast_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("1", "true", "yes", "on"):
        return True
    if str(value).lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError


def _words(kind: Any) -> str:
    return {bool: "a boolean", int: "an integer", float: "a number"}.get(kind, f"a {kind.__name__}")


def describe(config: Any) -> str:
    """One line per value, for the log at start."""
    values = dataclasses.asdict(config)
    return "\n".join(f"  {name} = {value!r}" for name, value in sorted(values.items()))


def parse_urls(flag: str, text: str) -> list[str]:
    """Comma-separated http(s) URLs without trailing slashes, each once; `ConfigError` otherwise."""
    urls = [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{flag}: '{url}' is not an http(s) URL")
    return list(dict.fromkeys(urls))
