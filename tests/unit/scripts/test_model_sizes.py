"""The sizes in docs/serving-a-model.md follow from configurations by the page's formulas."""

from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "serving-a-model.md"
HEAD, STEP_GIB = 128, 2
PICTURE = 69 * 39  # tokens of 1920 x 1080


@dataclass(frozen=True)
class Sizes:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool

    @property
    def parameters(self) -> int:
        """Of the language part, its norms and the biases of queries, keys and values included."""
        attention = self.hidden * HEAD * (2 * self.heads + 2 * self.kv_heads)
        small = 2 * self.hidden + HEAD * (self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + small
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + embeddings + self.hidden

    def kv(self, element: float) -> float:
        return 2 * self.layers * self.kv_heads * element


MODELS = (
    Sizes(36, 2048, 16, 2, 11008, 151936, tied=True),
    Sizes(28, 3584, 28, 4, 18944, 152064, tied=False),
    Sizes(80, 8192, 64, 8, 29568, 152064, tied=False),
)


def row(name: str) -> list[str]:
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.split("|")[-4:-1]]


@pytest.mark.parametrize(("column", "model"), list(enumerate(MODELS)))
def test_the_table_says_what_the_formulas_give(column: int, model: Sizes) -> None:
    weights = model.parameters * 2 / 2**30
    found = {
        "layers, hidden": f"{model.layers}, {model.hidden}, {model.heads}, {model.kv_heads}",
        "parameters, language": f"{model.parameters / 1e9:.2f} G",
        "KV of a token, bfloat16": f"{model.kv(HEAD * 2):,.0f} B",
        "KV of a token, int8": f"{model.kv(HEAD + 2):,.0f} B",
        "KV of 8,192 tokens": f"{model.kv(HEAD * 2) * 8192 / 2**30:.2f} GiB",
        "embedding of a picture": f"{PICTURE * model.hidden * 2 / 2**20:.1f} MiB",
        "its KV": f"{PICTURE * model.kv(HEAD * 2) / 2**20:.0f} MiB",
    }
    assert {name: row(name)[column] for name in found} == found
    said = float(row("weights of prefill or decode")[column].removesuffix(" GiB"))
    assert said == pytest.approx(weights, rel=1e-3)
    for gib in (24, 80):
        tokens = (0.9 * gib - said - STEP_GIB) * 2**30 / model.kv(HEAD * 2)
        cell = row(f"tokens in the KV cache of a{'n' if gib == 80 else ''} {gib} GiB")[column]
        if tokens > 0:
            assert int(cell.removesuffix(" k").replace(",", "")) == pytest.approx(
                tokens / 1e3, rel=1e-2
            )
        else:
            assert cell == "", "the weights alone do not fit"
