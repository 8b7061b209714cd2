"""Conversations with drawn pictures, in the form `tests.support.reference` takes them."""

from typing import Any

import numpy as np
from PIL import Image

from tests.support.reference import Messages


def picture(seed: int, width: int = 224, height: int = 224) -> Image.Image:
    """Coloured tiles; another seed is another picture of the same size."""
    tiles = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(tiles).resize((width, height), Image.Resampling.NEAREST)


def asking(*content: Any) -> Messages:
    """One user turn of texts and pictures."""
    parts = [
        {"type": "text", "text": item}
        if isinstance(item, str)
        else {"type": "image", "image": item}
        for item in content
    ]
    return [{"role": "user", "content": parts}]


LONG = "Tell me a long story about a server that answered questions before they were asked."


def text_cases() -> list[Messages]:
    return [asking("Hello"), asking(LONG), asking("Hello")]


def picture_cases() -> list[Messages]:
    """None, one, several, the same one twice, and two that differ only in their pixels."""
    return [
        asking("Hello"),
        asking(picture(1), "What is in this image?"),
        asking(picture(2), "What is in this image?"),
        asking(picture(2), "First this,", picture(3, 320, 200), "then that. Compare."),
        asking(picture(1), "and again", picture(1), "the same?"),
    ]
