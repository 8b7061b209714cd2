"""What the benchmark asks: an endless, seeded stream of samples per dataset."""

import itertools
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from benchmarks.common.pictures import data_url, sample
from benchmarks.serve.args import Settings
from benchmarks.serve.options import Bucket
from benchmarks.serve.tokens import TokenCounter, random_text

SHAREGPT_MIN = 4  # tokens of a prompt or an answer; limits are those of vllm bench serve
SHAREGPT_MAX_PROMPT = 1024
SHAREGPT_MAX_TOTAL = 2048


class DatasetError(ValueError):
    """A dataset file is missing, malformed or too small."""


@dataclass(frozen=True)
class Sample:
    """One request to be."""

    prompt: str  # text, "" where there are messages
    prompt_len: int  # tokens
    output_len: int  # tokens that it asks for
    images: tuple[str, ...] = ()  # data: URLs after the text
    messages: list[dict[str, Any]] | None = None  # a whole conversation, instead of `prompt`
    answer: str | None = None  # the one right answer, where there is one
    kind: str = ""  # of question


async def samples(settings: Settings, counter: TokenCounter) -> AsyncIterator[Sample]:
    """`num_samples` samples, the measured ones first; fewer with `--no-oversample`.

    Raises:
        DatasetError: the dataset's file cannot be used, or nothing in it can.
    """
    taken = 0
    async for item in dict(_DATASETS)[settings.dataset_name](settings, counter):
        yield item
        taken += 1
        if taken == settings.num_samples:
            return
    if not taken:
        raise DatasetError(f"{settings.dataset_path}: nothing in it can be asked")


async def _random(settings: Settings, counter: TokenCounter) -> AsyncIterator[Sample]:
    rng = random.Random(settings.seed)
    prefix, prefix_len = await random_text(counter, settings.random_prefix_len, rng)
    while True:
        length, output_len = (
            _uniform(rng, n, settings.random_range_ratio)
            for n in (settings.random_input_len, settings.random_output_len)
        )
        text, text_len = await random_text(counter, length, rng)
        yield Sample(f"{prefix} {text}".strip(), prefix_len + text_len, output_len)


async def _random_mm(settings: Settings, counter: TokenCounter) -> AsyncIterator[Sample]:
    rng = random.Random(settings.seed + 1)
    pixels = np.random.default_rng(settings.seed)
    buckets = settings.random_mm_bucket_config
    async for item in _random(settings, counter):
        sizes = rng.choices(list(buckets), list(buckets.values()), k=_items(settings, rng))
        images = tuple(noise(size, pixels) for size in sizes)
        yield Sample(item.prompt, item.prompt_len, item.output_len, images)


def noise(bucket: Bucket, rng: np.random.Generator) -> str:
    """A JPEG of random pixels as a data: URL: no two are alike, none compresses well."""
    height, width, _ = bucket
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return data_url(Image.fromarray(pixels), "JPEG")


def _items(settings: Settings, rng: random.Random) -> int:
    base = settings.random_mm_base_items_per_request
    ratio = settings.random_mm_num_mm_items_range_ratio
    limit = settings.random_mm_limit_mm_per_prompt.get("image", 0)
    low, high = math.floor(base * (1 - ratio)), min(limit, math.ceil(base * (1 + ratio)))
    if low > high:
        raise DatasetError(f"{low} items per request are more than the limit of {limit} images")
    return rng.randint(low, high)


async def _demo(settings: Settings, counter: TokenCounter) -> AsyncIterator[Sample]:
    """Held-out questions, one kind after the other. Every seed has questions of its own."""
    first = settings.seed % 2**16 * 2**20
    for index in itertools.count(first):
        for kind in settings.demo_kinds:
            question = sample(kind, index)
            yield Sample(
                prompt=question.text,
                prompt_len=await counter.count(question.text),
                output_len=settings.demo_output_len,
                messages=question.openai_messages(),
                answer=question.answer,
                kind=kind,
            )


async def _sharegpt(settings: Settings, counter: TokenCounter) -> AsyncIterator[Sample]:
    turns = [turn for row in _sharegpt_rows(settings) if (turn := _first_turn(row))]
    for prompt, answer in _repeated(turns, settings):
        prompt_len = await counter.count(prompt)
        output_len = settings.sharegpt_output_len or await counter.count(answer)
        if min(prompt_len, output_len) < SHAREGPT_MIN or prompt_len > SHAREGPT_MAX_PROMPT:
            continue
        if prompt_len + output_len <= SHAREGPT_MAX_TOTAL:
            yield Sample(prompt, prompt_len, output_len)


def _sharegpt_rows(settings: Settings) -> list[Any]:
    rows = _decoded(_read(settings.dataset_path))
    if not isinstance(rows, list):
        raise DatasetError(f"{settings.dataset_path}: expected a list of conversations")
    return rows


def _first_turn(row: Any) -> tuple[str, str] | None:
    """The first message and its answer."""
    turns = row.get("conversations") if isinstance(row, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    first, second = (turn.get("value") for turn in turns[:2])
    return (first, second) if isinstance(first, str) and isinstance(second, str) else None


async def _custom(settings: Settings, counter: TokenCounter) -> AsyncIterator[Sample]:
    lines = [line for line in _read(settings.dataset_path).splitlines() if line.strip()]
    for row in _repeated([_decoded(line) for line in lines], settings):
        yield await _custom_sample(row, settings, counter)


async def _custom_sample(row: Any, settings: Settings, counter: TokenCounter) -> Sample:
    """A line: `prompt` or, for chats, `messages`; perhaps `output_tokens`, `answer`."""
    if not isinstance(row, dict) or not (
        "prompt" in row or (settings.is_chat and "messages" in row)
    ):
        raise DatasetError(
            f"{settings.dataset_path}: a line needs prompt, a chat may have messages"
        )
    output_len = settings.custom_output_len
    if output_len == -1:
        output_len = row.get("output_tokens", 0)
        if not isinstance(output_len, int) or output_len < 1:
            raise DatasetError(
                f"{settings.dataset_path}: --custom-output-len -1 needs output_tokens"
            )
    prompt = row.get("prompt", "")
    return Sample(
        prompt=prompt,
        prompt_len=await counter.count(prompt),
        output_len=output_len,
        messages=row.get("messages"),
        answer=row.get("answer"),
    )


def _repeated(rows: list[Any], settings: Settings) -> Iterator[Any]:
    """The rows, shuffled, again and again unless that is switched off."""
    if not settings.disable_shuffle:
        rows = random.Random(settings.seed).sample(rows, len(rows))
    rounds = 1 if settings.no_oversample else settings.num_samples
    return itertools.chain.from_iterable(itertools.repeat(rows, rounds))


def _read(path: Path | None) -> bytes:
    try:
        return Path(path or "").read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot read the dataset: {error}") from error


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise DatasetError(f"the dataset is not JSON: {error}") from error


def _uniform(rng: random.Random, length: int, ratio: float) -> int:
    low, high = math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))
    return rng.randint(max(1, low), max(1, high))


_DATASETS: tuple[tuple[str, Callable[[Settings, TokenCounter], AsyncIterator[Sample]]], ...] = (
    ("random", _random),
    ("random-mm", _random_mm),
    ("demo", _demo),
    ("sharegpt", _sharegpt),
    ("custom", _custom),
)
