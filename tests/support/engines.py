"""An engine inside the test process, and the requests a reference conversation becomes."""

import io
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from PIL import Image

from protocol.kv_events import CacheEvent
from protocol.types import (
    EncodeItem,
    EncodeRequest,
    GenerateRequest,
    MMItem,
    RequestOutput,
    SamplingParams,
)
from services.engine.config import EngineConfig
from services.engine.engine import Engine
from services.engine.scheduling.seams import Clock
from services.membership.events import CacheLog
from tests.support.reference import Messages, Reference, load

DEADLINE_S = 60.0


def engine(model_dir: Path, clock: Clock = time.monotonic, **options: Any) -> Engine:
    """An engine with every part that the model has."""
    reference = load(model_dir)
    parts = ("language",) if reference.image_processor is None else ("language", "vision")
    defaults = {"dtype": "float32", "num_blocks": 256, "eos_token_ids": reference.eos}
    values = {"parts": parts, **defaults, **options}
    config = EngineConfig(model_dir=str(model_dir), model=model_dir.name, revision="test", **values)
    return Engine(config, lambda: None, clock)


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def request_of(
    model_dir: Path, messages: Messages, request_id: str, **sampling: Any
) -> tuple[GenerateRequest, EncodeRequest]:
    """What a frontend would make of a conversation, built from transformers' own processing."""
    reference = load(model_dir)
    inputs = reference.inputs(messages)
    token_ids = inputs["input_ids"][0].tolist()
    images = [
        part["image"]
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image"
    ]
    spans = _spans(reference, token_ids, images)
    grids = inputs.get("image_grid_thw", torch.zeros(len(images), 0)).tolist()
    hashes = [blake3(png(image)).hexdigest() for image in images]
    items = [
        MMItem(name, "image", offset, length, tuple(int(n) for n in grid), gaps=gaps)
        for name, (offset, length, gaps), grid in zip(hashes, spans, grids, strict=True)
    ]
    encode = [
        EncodeItem(item.mm_hash, "image", item.length, item.grid, png(image))
        for item, image in zip(items, images, strict=True)
    ]
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 16, **sampling})
    return (
        GenerateRequest(request_id, token_ids, params, items),
        EncodeRequest(request_id, encode),
    )


def _spans(
    reference: Reference, token_ids: list[int], images: list[Any]
) -> list[tuple[int, int, tuple[int, ...]]]:
    """(offset, length, gaps) of each picture; two pictures' spans may touch."""
    token_id = int(reference.config.image_token_id) if images else -1
    spans: list[tuple[int, int, tuple[int, ...]]] = []
    place = 0
    for text in reference.written(images):
        ids = reference.tokenizer(text, add_special_tokens=False)["input_ids"]
        pads = [index for index, token in enumerate(ids) if token == token_id]
        place = token_ids.index(token_id, place)
        gaps = tuple(b - a - 1 for a, b in pairwise(pads) if b - a > 1)
        spans.append((place, len(pads), gaps))
        place += pads[-1] - pads[0] + 1
    return spans


def run(
    engine: Engine, requests: Iterable[tuple[GenerateRequest, EncodeRequest]]
) -> dict[tuple[str, int], list[int]]:
    """Serve requests to their end; the tokens of each (request id, choice)."""
    tokens: dict[tuple[str, int], list[int]] = defaultdict(list)
    waiting = 0
    for generate, encode in requests:
        assert engine.generate is not None
        if encode.items and engine.encode is not None:
            engine.encode.add(encode)
        refused = engine.generate.add(generate)
        assert not refused, refused
        waiting += len(generate.emitted) or generate.sampling.n
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        time.sleep(min(engine.wait_s, 0.001))
        outputs, encoded = engine.step()
        assert not [e.error for e in encoded if e.error]
        for output in outputs:
            assert output.error is None, output.error
            tokens[output.request_id, output.index] += output.token_ids
            waiting -= output.finish_reason is not None
        if not waiting:
            return tokens
    raise AssertionError("requests did not finish")


def at_once(worker: Engine, path: Path, cases: list[Messages], tokens: int) -> list[list[int]]:
    """The first `tokens` of each answer, all asked at once; nothing is leaked."""
    requests = [
        request_of(path, case, f"r{i}", max_tokens=tokens, ignore_eos=True)
        for i, case in enumerate(cases)
    ]
    found = run(worker, requests)
    assert worker.check_integrity() == []
    return [found[f"r{i}", 0] for i in range(len(cases))]


def ended(worker: Engine, name: str) -> list[RequestOutput]:
    """What a request puts out, to its end."""
    found: list[RequestOutput] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found += [output for output in worker.step()[0] if output.request_id == name]
        if found and found[-1].finish_reason is not None:
            return found
        threading.Event().wait(worker.wait_s)
    raise AssertionError("the request did not end")


def listening(worker: Engine) -> list[CacheEvent]:
    """All events from here on, in order."""
    heard: list[CacheEvent] = []
    log = worker._log
    assert isinstance(log, CacheLog)
    take: Callable[[], tuple[list[CacheEvent], list[CacheEvent]]] = log.take

    def taking() -> tuple[list[CacheEvent], list[CacheEvent]]:
        kv, ec = take()
        heard.extend([*kv, *ec])
        return kv, ec

    log.take = taking  # type: ignore[method-assign]
    return heard
