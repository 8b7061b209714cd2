"""`python -m scripts.trace_tree FILE`: the traces of a file that `--trace-to` made, as trees.

Each line is a span: its name, the process that made it, when it began (ms after the first span of
the trace) and how long it took. `from NAME` is a link: what the span got tensors from.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple


class Span(NamedTuple):
    """What is shown of one; times in ms since the epoch."""

    span_id: str  # of this span
    parent_id: str  # of the span around it, "" for none
    name: str  # what was done
    process: str  # service that did it
    start: float  # ms since the epoch
    end: float  # ms since the epoch
    links: tuple[str, ...]  # ids of spans of other requests that it belongs to


def traces_of(lines: Iterable[str]) -> dict[str, list[Span]]:
    """The spans by the id of their trace. `ValueError` names a line that holds no span, or a span
    that is inside itself."""
    found: dict[str, list[Span]] = defaultdict(list)
    for number, line in enumerate(lines, 1):
        try:
            told = json.loads(line)
            found[told["context"]["trace_id"]].append(_span(told))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"line {number} is no span: {error!r}") from None
    for spans in found.values():
        _check_parents(spans)
    return found


def _check_parents(spans: Sequence[Span]) -> None:
    parents = {span.span_id: span.parent_id for span in spans}
    for span in spans:
        seen = {at := span.span_id}
        while (at := parents.get(at, "")) in parents:
            if at in seen:
                raise ValueError(f"span {at} is inside itself")
            seen.add(at)


def _span(told: Mapping[str, Any]) -> Span:
    return Span(
        told["context"]["span_id"],
        told["parent_id"] or "",
        told["name"],
        told["resource"]["attributes"]["service.name"].removeprefix("triptych-"),
        _ms(told["start_time"]),
        _ms(told["end_time"]),
        tuple(link["context"]["span_id"] for link in told["links"]),
    )


def _ms(time: str) -> float:
    return datetime.fromisoformat(time).timestamp() * 1000


def tree(spans: Sequence[Span]) -> list[str]:
    """Lines; a span whose parent is not among them, such as a client's, stands at the top."""
    names = {span.span_id: span.name for span in spans}
    rows = [
        (lead + span.name + _linked(span, names), span)
        for top in _inside(spans, lambda span: span.parent_id not in names)
        for lead, span in _below(top, spans, "", "")
    ]
    width = max(len(name) for name, _ in rows)
    processes = max(len(span.process) for span in spans)
    start = min(span.start for span in spans)
    return [
        f"{name:{width}}  {span.process:{processes}}  at {span.start - start:7.1f}"
        f"  took {span.end - span.start:7.1f} ms"
        for name, span in rows
    ]


def _linked(span: Span, names: Mapping[str, str]) -> str:
    known = [names[link] for link in span.links if link in names]
    return f" (from {', '.join(known)})" if known else ""


def _inside(spans: Sequence[Span], belongs: Callable[[Span], bool]) -> list[Span]:
    return sorted(filter(belongs, spans), key=lambda span: span.start)


def _below(
    span: Span, spans: Sequence[Span], lead: str, further: str
) -> Iterator[tuple[str, Span]]:
    """The span and all inside it, each with what is drawn before its name."""
    yield lead, span
    inner = _inside(spans, lambda other: other.parent_id == span.span_id)
    for each in inner:
        last = each is inner[-1]
        yield from _below(
            each, spans, further + ("└─ " if last else "├─ "), further + ("   " if last else "│  ")
        )


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        found = traces_of(Path(argv[0]).read_text(encoding="utf-8").splitlines())
    except OSError as error:
        return _refused(argv[0], error.strerror or str(error))
    except ValueError as error:
        return _refused(argv[0], str(error))
    for trace, spans in found.items():
        print("\n".join([f"trace {trace}", *tree(spans)]))
    return 0


def _refused(path: str, why: str) -> int:
    print(f"error: {path}: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
