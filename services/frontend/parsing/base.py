"""The one interface of all families: how a model writes its calls, to be read and to be forced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote

from services.frontend.parsing.heard import Listener, new_call_id
from services.frontend.parsing.rules import Rules
from services.frontend.parsing.source import Source, Steps

Json = dict[str, Any]


@dataclass(frozen=True)
class Function:
    """A tool that may be called. `parameters`: JSON schema of its arguments."""

    name: str
    parameters: Json = field(default_factory=lambda: {"type": "object"})
    strict: bool = False  # whether what cannot be enforced in them is an error

    def schema_of(self, parameter: str) -> Json:
        """Schema of one parameter, {} if it is not declared."""
        return properties_of(self.parameters).get(parameter, {})


def properties_of(schema: Json) -> dict[str, Json]:
    """Schemas of an object's properties by name, in order; {} for one that takes anything."""
    found = schema.get("properties")
    properties = found if isinstance(found, dict) else {}
    return {name: s if isinstance(s, dict) else {} for name, s in properties.items()}


def required_of(schema: Json) -> list[str]:
    """Those of an object's properties that must be there, in order."""
    found = schema.get("required")
    required = found if isinstance(found, list) else []
    return [name for name in properties_of(schema) if name in required]


def constants_of(schema: Json) -> list[Any]:
    """The only values that a schema lets through, where it names them; [] where it does not."""
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else []


def pointed(reference: str) -> list[str] | None:
    """The names on the way to what a reference such as #/$defs/place points to, from the root on;
    None for one of another kind, such as #place or a URI."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    names = unquote(reference).split("/")[1:]
    return [name.replace("~1", "/").replace("~0", "~") for name in names]


def referred(root: Json, reference: str) -> Any:
    """What a reference points to in `root`; None if nothing is there."""
    names = pointed(reference)
    place: Any = None if names is None else root
    for name in names or ():
        if isinstance(place, list):
            index = int(name) if name.isdecimal() and len(name) < 10 else len(place)
            place = place[index] if index < len(place) else None
        else:
            place = place.get(name) if isinstance(place, dict) else None
    return place


def object_call(name: str, source: Source, out: Listener) -> Steps[bool]:
    """Read the JSON object of a call's arguments; False, and no call, without a name or object."""
    if not name or (yield from source.peek()) != "{":
        return False
    out.begin(name)
    yield from source.json(out.arguments, keep=False)
    out.end()
    return True


class ToolFormat(ABC):
    """One family's. `tools`: functions by name that the client has declared."""

    marks: ClassVar[tuple[str, ...]] = ()  # what may be special tokens in the model's vocabulary
    always: ClassVar[bool] = False  # whether answers without tools have this form too

    def __init__(self, tools: Mapping[str, Function] | None = None) -> None:
        self.tools = tools or {}

    def new_id(self) -> str:
        """The name of a call, which the template must take when it comes back."""
        return new_call_id()

    @abstractmethod
    def read(self, source: Source, out: Listener) -> Steps[None]:
        """Tell `out` what an answer holds, to its end."""

    @abstractmethod
    def written(self, function: Function, rules: Rules) -> str:
        """What a call of `function` looks like, in terms of a Lark grammar."""

    def grammar(self, functions: Sequence[Function], most: int, rules: Rules) -> None:
        """Add the rule `start`: one to `most` calls, and nothing else."""
        rules.add("call", " | ".join(self.written(function, rules) for function in functions))
        between = self.between(rules)
        more = f" ({between} call){{0,{most - 1}}}" if most > 1 else ""
        rules.add("start", f"{self.before(rules)} call{more} {self.after(rules)}")

    def before(self, rules: Rules) -> str:
        """What stands before the first of several calls, as a term of a grammar."""
        return ""

    def opening(self, rules: Rules) -> str:
        """What stands before an answer that is no call, where that has a form too."""
        return ""

    def between(self, rules: Rules) -> str:
        return ""

    def after(self, rules: Rules) -> str:
        return ""
