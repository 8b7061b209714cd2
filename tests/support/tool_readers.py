"""What a reader of tool calls tells of a text, joined."""

from collections.abc import Sequence

from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.heard import CallPiece, Heard, Said
from services.frontend.parsing.json_call import Hermes
from services.frontend.parsing.reading import Reading

BERN = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "at": [1, 2.50]}}\n</tool_call>'
)
CITY = '{"city": "Bern"}'
STOP = ("halt", "{}")
Told = tuple[str, list[tuple[str, str]]]
TOOLS = {
    "halt": Function("halt"),
    "weather": Function(
        "weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "wet": {"type": "boolean"},
                "at": {"type": "array"},
            },
        },
    ),
}


def read(reading: Reading, pieces: Sequence[str]) -> Heard:
    """Everything that is told, joined by call."""
    reader = reading.reader()
    assert reader is not None
    heard = [*map(reader.push, pieces), reader.last(), reader.last()]
    assert heard[-1] == Heard()
    calls: dict[int, CallPiece] = {}
    for piece in (piece for h in heard for piece in h.calls):
        known = calls.get(piece.index)
        assert bool(piece.id) == bool(piece.name) == (known is None)
        before = known or CallPiece(piece.index, "", str(piece.index), piece.name)
        joined = before.arguments + piece.arguments
        calls[piece.index] = CallPiece(piece.index, joined, before.id, before.name)
    assert sorted(calls) == list(calls) == list(range(len(calls)))
    said = [part for h in heard for part in h.parts if isinstance(part, Said)]
    thought = "".join(part.text for part in said if part.thought)
    text = "".join(part.text for part in said if not part.thought)
    return of(text, thought, tuple(calls.values()))


def of(text: str, thought: str, calls: tuple[CallPiece, ...] = ()) -> Heard:
    """In this order."""
    said = (Said(thought, thought=True), Said(text))
    return Heard((*(piece for piece in said if piece.text), *calls))


def hear(
    pieces: Sequence[str],
    most: int = 9,
    *,
    only: bool = False,
    form: type[ToolFormat] = Hermes,
) -> Told:
    """The text, and name and arguments of each call."""
    heard = read(Reading(form(TOOLS), most=most, only=only), pieces)
    return heard.text, [(call.name, call.arguments) for call in heard.calls]
