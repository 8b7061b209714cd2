"""The references in docs are those of the code."""

import pytest

from scripts.references import DOCS, flags_page, metrics_page


@pytest.mark.parametrize(("name", "page"), [("flags.md", flags_page), ("metrics.md", metrics_page)])
def test_a_reference_is_up_to_date(name: str, page: object) -> None:
    assert callable(page)
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == page(), "run: python -m scripts.references"


def test_every_metric_is_explained_in_a_sentence() -> None:
    rows = [line.split(" | ") for line in metrics_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    for name, *_, text in rows:
        assert text.rstrip(" |").endswith(".") and len(text.split()) > 2, name
