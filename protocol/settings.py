"""Configuration: a frozen dataclass per process, resolved once from file, environment and flags.

Later sources win: defaults, then the file named by `--config` (YAML), then environment variables
`TRIPTYCH_<NAME>`, then flags. The values that won are checked in the order of the fields; the first
bad one is a `ConfigError` that names its flag, its variable or its line of the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, get_type_hints

import yaml

from protocol.errors import ConfigError
from protocol.options import Rule, checked, help_of, rule_of, sections

_T = TypeVar("_T")
ENV_PREFIX = "TRIPTYCH_"
NAMESPACE = "TRIPTYCH_NAMESPACE"  # read by connectors, in every role
_MODEL_WORD = "model as a word"  # as in vllm serve MODEL
_SIMILAR = 0.9  # a slip of the pen; no two options of different roles are that close
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
logger = logging.getLogger(__name__)


class _Found(NamedTuple):
    """A value as its source gives it."""

    source: str
    value: Any


_Values = dict[str, _Found]
_Fields = Mapping[str, dataclasses.Field[Any]]


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
    flags, path = _from_flags(kind, argv, fields, types, prog)
    found = _from_file(Path(path), fields) if path else {}
    found |= _from_environment(os.environ if environ is None else environ, fields, types)
    found |= flags
    values = {
        name: _checked(name, found[name], types[name], rule_of(fields[name]))
        for name in fields
        if name in found
    }
    return kind(**values)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _checked(name: str, found: _Found, kind: Any, rule: Rule) -> Any:
    try:
        return checked(found.source, found.value, kind, rule)
    except ConfigError as error:
        reason = error.message
        for prefix in (found.source, flag_of(name), ""):
            reason = reason.removeprefix(f"{prefix}: ")
        raise ConfigError(f"{found.source}: {reason}") from None


class _Parser(argparse.ArgumentParser):
    """Its errors are one line each, and end nothing by themselves."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def _from_flags(
    kind: type[Any], argv: Sequence[str], fields: _Fields, types: Mapping[str, Any], prog: str
) -> tuple[_Values, str | None]:
    """The values of flags, and the path of the file."""
    parser = _parser(kind, fields, types, prog)
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        known = [flag for action in parser._actions for flag in action.option_strings]
        what = "flag" if unknown[0].startswith("-") else "argument"
        word = unknown[0].partition("=")[0]
        raise ConfigError(f"unknown {what} {word}{_hint(word, known)}")
    values = vars(given)
    path = values.pop("config", None)
    word = values.pop(_MODEL_WORD, None)
    if word is not None and "model" in values:
        other = _joined(values["model"], " and ")
        raise ConfigError(f"--model: the model is given twice, {word} and {other}")
    values |= {} if word is None else {"model": word}
    joined = {n: _joined(v, rule_of(fields[n]).between) for n, v in values.items()}
    return {name: _Found(flag_of(name), value) for name, value in joined.items()}, path


def _joined(value: Any, between: str) -> Any:
    """All values of a flag that may be given again, as one."""
    return between.join(value) if isinstance(value, list) else value


def _parser(kind: type[Any], fields: _Fields, types: Mapping[str, Any], prog: str) -> _Parser:
    # Abbreviations would change their meaning with every option that is added.
    parser = _Parser(prog=prog or None, argument_default=argparse.SUPPRESS, allow_abbrev=False)
    parser.add_argument("--config", metavar="PATH", help="YAML file with options by name.")
    if "model" in fields:
        parser.add_argument(_MODEL_WORD, nargs="?", metavar="MODEL", help="The same as --model.")
    for heading, names in sections(kind).items():
        group = parser.add_argument_group(heading) if heading else parser
        for name in names:
            _add_flag(group, fields[name], types[name], help_of(kind, fields[name]))
    return parser


def _add_flag(
    group: argparse._ActionsContainer, field: dataclasses.Field[Any], kind: Any, help: str
) -> None:
    rule, name = rule_of(field), field.name
    text = f"{help} [{_facts(name, field, rule)}]".replace("%", "%%")
    flags = (flag_of(name), *rule.flags)
    if kind is bool:
        switch = argparse.BooleanOptionalAction
        group.add_argument(*flags, dest=name, action=switch, help=text)
    else:
        action = "append" if rule.between else "store"
        group.add_argument(*flags, dest=name, help=text, metavar=rule.metavar, action=action)


def _facts(name: str, field: dataclasses.Field[Any], rule: Rule) -> str:
    """Unit and range, or the choices; the default and the variable."""
    default = str(field.default)
    default = default.lower() if isinstance(field.default, bool) else default
    facts = [f"{rule.unit} {rule.range()}".strip()] if rule.range() else []
    if "|".join(rule.choices) not in ("", rule.metavar):
        facts.append(f"one of {', '.join(rule.choices)}")
    facts.append(f"default {default or 'empty'}")
    facts.append(" or ".join(_variables(name, rule)))
    return "; ".join(facts)


def _variables(name: str, rule: Rule) -> list[str]:
    """The environment variables of an option; the later one wins."""
    return [variable for variable in (rule.env, ENV_PREFIX + name.upper()) if variable]


def _from_file(path: Path, fields: _Fields) -> _Values:
    found: _Values = {}
    for key, value in _lines(path):
        line = f"{path}, line {key.start_mark.line + 1}"
        name = str(key.value).replace("-", "_")
        if name not in fields:
            raise ConfigError(f"{line}: unknown name {name}{_hint(name, fields)}")
        if name in found:
            raise ConfigError(f"{line}: {name} is given twice")
        found[name] = _Found(f"{line}: {name}", value)
    return found


def _lines(path: Path) -> list[tuple[yaml.Node, Any]]:
    """(node of the key, value) of each entry of a YAML mapping."""
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if root is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"--config: {path} holds no mapping of names to values")
        return [(key, _plain(loader, value)) for key, value in root.value]
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--config: {path} cannot be read: {error}") from None


def _plain(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    """A scalar as it is written: YAML takes `on` for true, where it may be a choice."""
    null = node.tag == "tag:yaml.org,2002:null"
    if isinstance(node, yaml.ScalarNode) and not null:
        return node.value
    return loader.construct_object(node, deep=True)


def _from_environment(
    environ: Mapping[str, str], fields: _Fields, types: Mapping[str, Any]
) -> _Values:
    found: _Values = {}
    for name, field in fields.items():
        for variable in _variables(name, rule_of(field)):
            if variable not in environ:
                continue
            if types[name] is not str and _SERVICE_URL.fullmatch(environ[variable]):
                # Kubernetes sets NAME_PORT to the URL of a service that is called NAME.
                logger.warning("%s is the address of a service, not an option: ignored", variable)
                continue
            found[name] = _Found(variable, environ[variable])
    _check_spelling(environ, fields)
    return found


def _check_spelling(environ: Mapping[str, str], fields: _Fields) -> None:
    """`ConfigError` for a variable that is nearly one of ours; those of other roles do no harm."""
    for variable in sorted(environ):
        name = variable.removeprefix(ENV_PREFIX).lower()
        if name == variable.lower() or name in fields or variable == NAMESPACE:
            continue
        if meant := misspelt(name, fields):
            right = ENV_PREFIX + meant.upper()
            raise ConfigError(f"unknown variable {variable}; did you mean {right}?")


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """Which of `known` is meant; the first letter is right: encode is not a misspelt decode."""
    alike = [other for other in known if other[:1] == name[:1]]
    close = difflib.get_close_matches(name, alike, n=1, cutoff=_SIMILAR)
    return close[0] if close else None


def _hint(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def describe(config: Any) -> str:
    """One line per value, for the log at start; of a secret whether it is set."""
    shown = {
        field.name: _shown(getattr(config, field.name), rule_of(field))
        for field in dataclasses.fields(config)
    }
    return "\n".join(f"  {name} = {value}" for name, value in sorted(shown.items()))


def _shown(value: Any, rule: Rule) -> str:
    return repr("set" if value else "") if rule.secret else repr(value)
