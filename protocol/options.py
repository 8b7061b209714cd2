"""What an option of a process takes: its words, its unit, its range or choices, its own check.

A configuration is a dataclass whose fields come from `option` or from one of the shorter forms for
common units. `protocol.settings` reads the values and applies `checked`.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.errors import ConfigError

MAX_SECONDS = 1e9
MAX_MS = 1e12
MAX_COUNT = 1 << 40
MAX_BYTES = 1 << 60
MAX_PORT = 65535
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
_SHORT = 40  # characters that a usage line has room for

Check = Callable[[Any], object]


@dataclass(frozen=True)
class Rule:
    """What one option takes.

    Numbers lie within the bounds; infinity is one only if `maximum` is. Words are one of `choices`
    in any case, or match `pattern` as a whole. `check` raises `ConfigError` for what is left.
    """

    help: str  # a sentence that a stranger understands; unit, range and default are added
    unit: str = ""  # of a number: seconds, bytes, tokens; of text: what it is, such as a path
    env: str | None = None  # a second name of the option's variable
    choices: tuple[str, ...] = ()
    minimum: float | None = None  # the least number
    maximum: float | None = None
    above: float | None = None  # a minimum that is itself too little
    below: float | None = None  # a maximum that is itself too much
    pattern: str | None = None  # regular expression of a text
    form: str = ""  # what a text that matches `pattern` is, for the error of one that does not
    check: Check | None = None  # what remains to be checked of the value
    secret: bool = False  # its value is never shown
    # what stands between the values of a flag that may be given again, "" if it may not
    between: str = ""
    flags: tuple[str, ...] = ()  # further flags, by which other systems name the same
    section: str = ""  # heading that starts with this option, for those that follow it too

    @property
    def bounded(self) -> bool:
        """Whether a number has a bound on both sides."""
        low, high = (self.minimum, self.above), (self.maximum, self.below)
        return low != (None, None) and high != (None, None)

    @property
    def metavar(self) -> str:
        """What stands for the value in a usage line: the choices if they are short, else a noun."""
        choices = "|".join(self.choices)
        if 0 < len(choices) <= _SHORT:
            return choices
        noun = "name" if choices else self.unit
        return noun.upper().replace(" OR ", "|").replace(" ", "_")

    def range(self) -> str:
        """The bounds in words, "" if there are none."""
        if self.minimum is not None and self.maximum is not None:
            return f"from {_number(self.minimum)} to {_number(self.maximum)}"
        bounds = {"at least": self.minimum, "above": self.above,
                  "at most": self.maximum, "below": self.below}  # fmt: skip
        return ", ".join(f"{w} {_number(n)}" for w, n in bounds.items() if n is not None)

    def admits(self, value: float) -> bool:
        """Whether a number lies within the bounds; what is not a number never does."""
        return (
            not math.isnan(value)
            and (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
            and (self.below is None or value < self.below)
            and (math.isfinite(value) or self.maximum == math.inf)
        )


def option(default: Any, help: str, unit: str = "", **rule: Any) -> Any:
    """A dataclass field that is also a flag, a variable and a line of a file; see `Rule`."""
    return dataclasses.field(default=default, metadata={"rule": Rule(help, unit, **rule)})


def seconds(default: float, help: str, *, minimum: float = 0.001, **rule: Any) -> Any:
    """A duration; one that may be 0 says so by `minimum`."""
    return option(default, help, "seconds", minimum=minimum, maximum=MAX_SECONDS, **rule)


def milliseconds(default: float, help: str, **rule: Any) -> Any:
    """A duration of 0 or more."""
    return option(default, help, "milliseconds", minimum=0, maximum=MAX_MS, **rule)


def count(default: int, help: str, unit: str, *, minimum: int = 1, **rule: Any) -> Any:
    """How many of `unit`; one that may be 0 says so by `minimum`."""
    return option(default, help, unit, **{"minimum": minimum, "maximum": MAX_COUNT, **rule})


def size(default: int, help: str, *, minimum: int = 1, **rule: Any) -> Any:
    return option(default, help, "bytes", minimum=minimum, maximum=MAX_BYTES, **rule)


def port_option(default: int, help: str, **rule: Any) -> Any:
    return option(default, help, "port", **{"minimum": 0, "maximum": MAX_PORT, **rule})


def grpc_port_option(protocol: str) -> Any:
    return option(
        -1,
        f"TCP port for {protocol} over gRPC; needs the extra grpc. 0: any free port. -1: none.",
        "port",
        minimum=-1,
        maximum=MAX_PORT,
    )


def log_level_option() -> Any:
    return option("info", "Least severity of the log lines that are written.", choices=LOG_LEVELS)


def vllm_metrics_option() -> Any:
    return option(
        False,
        "Show /metrics under vLLM's names too, for its dashboards and autoscalers. Of a fleet, turn"
        " it on for workers or for proxies: both tell of the same requests.",
    )


def log_format_option() -> Any:
    return option("text", "Form of the log lines; json: one object a line.", choices=LOG_FORMATS)


def drain_delay_option(**rule: Any) -> Any:
    return seconds(
        0.0,
        "Time after SIGTERM in which new requests are still taken while /ready answers 503: as long"
        " as load balancers take to notice.",
        minimum=0,
        **rule,
    )


def shutdown_timeout_option() -> Any:
    return seconds(
        25.0,
        "Time that requests in progress have to end after --drain-delay; the rest get an error.",
        minimum=0,
    )


def rule_of(field: dataclasses.Field[Any]) -> Rule:
    return field.metadata.get("rule") or Rule("")


def help_of(kind: type[Any], field: dataclasses.Field[Any]) -> str:
    """What is said of an option: its own sentences, and what holds of it in this process alone,
    which the configuration has in `notes` by the option's name."""
    notes: Mapping[str, str] = getattr(kind, "notes", {})
    return " ".join(filter(None, (rule_of(field).help, notes.get(field.name))))


def sections(kind: type[Any]) -> dict[str, list[str]]:
    """Names of the options of a configuration by heading; its own come before those it shares with
    other processes."""
    found: dict[str, list[str]] = {}
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for owner in kind.__mro__:
        heading = ""
        for name in inspect.get_annotations(owner):
            if (field := fields.pop(name, None)) is not None:
                heading = rule_of(field).section or heading
                found.setdefault(heading, []).append(name)
    return found


def checked(source: str, value: Any, kind: Any, rule: Rule) -> Any:
    """`value` of `source` as `kind`, if the rule admits it; `ConfigError` names the source."""
    result = _cast(source, value, kind)
    if rule.choices:
        result = _choose(source, result, rule.choices)
    elif isinstance(result, float | int) and not rule.admits(result):
        raise ConfigError(f"{source}: {value!s} is out of range: {_wanted(kind, rule)}")
    elif rule.pattern and not re.fullmatch(rule.pattern, result):
        raise ConfigError(f"{source}: {result!r} is not {rule.form}")
    if rule.check is not None:
        rule.check(result)
    return result


def _cast(source: str, value: Any, kind: Any) -> Any:
    try:
        return _CASTS[kind](value)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"{source}: {_shown(value)} is not {_WORDS[kind]}") from None


def _bool(value: Any) -> bool:
    return {"1": True, "true": True, "yes": True, "on": True,
            "0": False, "false": False, "no": False, "off": False,
            "": False}[str(value).lower()]  # fmt: skip


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_CASTS: dict[Any, Callable[[Any], Any]] = {bool: _bool, int: int, float: float, str: _text}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _choose(source: str, value: str, choices: tuple[str, ...]) -> str:
    found = {choice.lower(): choice for choice in choices}
    if value.lower() not in found:
        raise ConfigError(f"{source}: {value!r} is not one of {', '.join(choices)}")
    return found[value.lower()]


def _wanted(kind: Any, rule: Rule) -> str:
    return " ".join(part for part in (_WORDS[kind], rule.range()) if part)


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)


def _number(value: float) -> str:
    if isinstance(value, int):
        power = value.bit_length() - 1
        return f"2^{power}" if power >= 30 and value == 1 << power else str(value)
    return re.sub(r"e\+0*", "e", f"{value:g}")
