"""What clients of the proxies ask."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import dataclass

from benchmarks.bench_proxy import load

SEED = 0
PICTURE_BYTES = 400_000  # drawn at random, so that no proxy or worker could compress them


@dataclass(frozen=True)
class Scenario:
    """`connections` ask the same thing at once. `slow`: events come slowly, and they count.
    `copies`: how often a picture goes to a worker."""

    name: str
    body: bytes
    connections: int
    slow: bool = False
    copies: int = 1


def scenarios() -> list[Scenario]:
    drawn = random.Random(SEED)
    words = {"messages": [{"role": "user", "content": "Tell me a story. " * 10}]}
    text = {"model": "fake", "max_tokens": 16, **words}
    return [
        Scenario("text JSON", _json(text), 32),
        Scenario("text stream", _json({**text, "stream": True}), 32),
        Scenario("one picture", _json({**text, **_pictures(drawn, 1)}), 8),
        Scenario(
            "one picture, no ec_transfer_params",
            _json({**text, **_pictures(drawn, 1), "user": "plain"}),
            8,
            copies=3,
        ),
        Scenario("eight pictures", _json({**text, **_pictures(drawn, 8)}), 4),
        Scenario("64 slow streams", _json({**text, "stream": True, "user": "slow"}), 64, slow=True),
    ]


def _json(body: object) -> bytes:
    return json.dumps(body).encode()


def _pictures(drawn: random.Random, count: int) -> dict[str, object]:
    parts: list[dict[str, object]] = [{"type": "text", "text": "Compare."}]
    for _ in range(count):
        data = base64.b64encode(drawn.randbytes(PICTURE_BYTES)).decode()
        url = f"data:image/png;base64,{load.FRESH.decode()}{data}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {"messages": [{"role": "user", "content": parts}]}
