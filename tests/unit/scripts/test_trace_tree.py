"""Spans of a file as a tree."""

import json
from pathlib import Path

import pytest

from scripts.trace_tree import main, traces_of, tree


def line(own: str, parent: str | None, name: str, start: float, end: float, link: str = "") -> str:
    day = "2026-11-25T10:00:0"
    return json.dumps({
        "name": name, "context": {"trace_id": "0xaa", "span_id": own}, "parent_id": parent,
        "start_time": f"{day}{start:.3f}Z", "end_time": f"{day}{end:.3f}Z",
        "links": [{"context": {"trace_id": "0xaa", "span_id": link}}] if link else [],
        "resource": {"attributes": {"service.name": f"triptych-{name.split()[0]}"}},
    })  # fmt: skip


SPANS = [
    line("4", "3", "worker", 1.2, 1.3),
    line("3", "1", "prefill", 1.15, 1.4, link="2"),
    line("2", "1", "encode", 1.1, 1.35),
    line("1", "client", "proxy /v1", 1.0, 1.5),
]


def test_spans_stand_inside_their_parents_in_the_order_of_their_beginnings() -> None:
    (spans,) = traces_of(SPANS).values()
    assert tree(spans) == [
        "proxy /v1                 proxy    at     0.0  took   500.0 ms",
        "├─ encode                 encode   at   100.0  took   250.0 ms",
        "└─ prefill (from encode)  prefill  at   150.0  took   250.0 ms",
        "   └─ worker              worker   at   200.0  took   100.0 ms",
    ]


def test_every_trace_of_the_file_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text("\n".join([*SPANS, SPANS[2].replace("0xaa", "0xbb")]) + "\n")
    assert main([str(file)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [row for row in said if row.startswith("trace ")] == ["trace 0xaa", "trace 0xbb"]
    assert len(said) == 2 + len(SPANS) + 1
    assert main([]) == 2


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line("1", "1", "alone", 1.0, 1.5)], "span 1 is inside itself"),
        ([line("1", "2", "one", 1.0, 1.5), line("2", "1", "two", 1.0, 1.5)], "is inside itself"),
        ([*SPANS, SPANS[0][:40]], "line 5 is no span"),
        (["[]"], "line 1 is no span"),
        (["{}"], "line 1 is no span: KeyError('context')"),
    ],
)
def test_a_file_that_has_no_trees_is_refused(
    lines: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text("\n".join(lines))
    assert main([str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {file}: ") and said in told


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'none'}: No such file or directory\n"
