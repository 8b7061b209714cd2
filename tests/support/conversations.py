"""Conversations with drawn pictures and clips and made-up sound, in the form that
`tests.support.reference` and `audio_reference` take them."""

from typing import Any

import numpy as np
from PIL import Image

from tests.support.audio_files import AudioFile, audio_file
from tests.support.clips import DrawnClip, clip
from tests.support.reference import Messages


def picture(seed: int, width: int = 224, height: int = 224) -> Image.Image:
    """Coloured tiles; another seed is another picture of the same size."""
    tiles = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(tiles).resize((width, height), Image.Resampling.NEAREST)


def asking(*content: Any) -> Messages:
    """One user turn of texts, pictures, clips and sound."""
    parts = [_part(item) for item in content]
    return [{"role": "user", "content": parts}]


def _part(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    if isinstance(item, DrawnClip):
        return {"type": "video", "video": item}
    if isinstance(item, AudioFile):
        return {"type": "audio", "audio": item}
    return {"type": "image", "image": item}


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


def clip_cases() -> list[Messages]:
    """One, one that is longer in time than its rows and the text behind it, one beside a picture
    and text, two of which one has an odd number of frames, and one of hardly any frames."""
    return [
        asking(clip(1), "What happens here?"),
        asking("Look", clip(2, frames=60, rate=3)),
        asking(picture(1), "First this,", clip(3, size=(80, 120)), "then", picture(2, 160, 90)),
        asking(clip(4, frames=9, rate=2), "and", clip(5, frames=30, rate=30), "Compare."),
        asking(clip(6, frames=3), "A picture?"),
    ]


def audio_cases() -> list[Messages]:
    """None, one, one as long as the window, two of which one is hardly heard, and the same one
    twice beside text that it is not told apart from by its length."""
    return [
        asking("Hello"),
        asking(audio_file(1), "What do you hear?"),
        asking("Listen:", audio_file(2, seconds=2.0)),
        asking(
            audio_file(3, seconds=0.05), "first this,", audio_file(4, seconds=1.3), "then that."
        ),
        asking(audio_file(5), "and again", audio_file(5), "the same?"),
    ]
