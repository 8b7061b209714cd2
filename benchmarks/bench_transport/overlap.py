"""What overlap is worth in a request's way: KV that moves while prefill computes, and prefill that
computes while pictures are encoded. Real workers, each on a core of its own.

Hidden share of KV: 1 − gap / whole. `whole` is what decode's KV connector counts, from the first
byte asked for until the producer has confirmed that it held all, for KV that is fetched only after
prefill's answer. `gap` is how long after prefill's answer a decode that was placed ahead has the
KV: what its connector counts, less the time that prefill's call took from the moment at which
decode was called, plus an HTTP round trip for the ways that the client's clock includes.

TTFT is prefill's answer, counted from the first call. With overlap encoder and prefill are called
at the same moment; without, prefill when every embedding is stored.
"""

from __future__ import annotations

import asyncio
import base64
import io
import random
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from benchmarks.bench_transport.measures import quartile
from benchmarks.bench_transport.stages import (
    SERVED,
    Client,
    Worker,
    build_model,
    client,
    ready,
    stages,
)
from benchmarks.common.random_model import SEED
from benchmarks.common.rows import Row, at_most
from protocol.openai import decode_chat
from protocol.types import EncodeItem, GenerateRequest, SamplingParams
from services.frontend.options import FrontendOptions
from services.frontend.render import Frontend
from services.frontend.spec import RenderedRequest

HIDDEN_BAR = 0.8
FIRST_BAR = 1.5
PICTURES = (1, 4, 16)
CHUNK = 256
DECODED = 2
_SIDE = 224
_VOCABULARY = range(32, 600)


def rows(
    base: Path, cores: tuple[int, int], transports: Sequence[str], tokens: int, rounds: int
) -> Iterator[Row]:
    """`tokens` of the long prompt; the first core prefills, the second encodes or decodes."""
    with tempfile.TemporaryDirectory(prefix="triptych-bench-") as folder:
        model = build_model(base, Path(folder) / "model")
        for name in transports:
            yield asyncio.run(_hidden(model, cores, name, tokens, rounds))
        yield from asyncio.run(_pictures(model, cores, rounds))


async def _hidden(
    model: Path, cores: tuple[int, int], transport: str, tokens: int, rounds: int
) -> Row:
    """The share of KV transfer time that is hidden behind prefill."""
    flags = ("--kv-transfer-config", transport, "--max-num-batched-tokens", str(CHUNK),
             "--no-enable-prefix-caching")  # fmt: skip
    gaps, wholes = [], []
    async with client() as caller:
        with stages(model) as made:
            started = [
                made.start("prefill", cores[0], *flags),
                made.start("decode", cores[1], *flags),
            ]
            prefill, decode = [await ready(caller, process) for process in started]
            for number in range(rounds + 1):
                gap = await _ahead(caller, prefill, decode, _prompt(tokens, number))
                whole = await _after(caller, prefill, decode, _prompt(tokens, number))
                if number:  # the first one shakes hands and touches memory
                    gaps.append(gap)
                    wholes.append(whole)
    gap, whole = max(0.0, quartile(gaps)), quartile(wholes)
    share = 1 - gap / whole
    name = (
        f"{transport}: KV of {tokens} tokens in chunks of {CHUNK}, ms after prefill (hidden share)"
    )
    return Row(name, gap * 1e3, whole * 1e3, share, f"ratio >= {HIDDEN_BAR}", share >= HIDDEN_BAR)


def _prompt(tokens: int, number: int) -> GenerateRequest:
    drawn = random.Random(SEED + number)
    ids = drawn.choices(_VOCABULARY, k=tokens)
    sampling = SamplingParams(max_tokens=DECODED, temperature=0.0, ignore_eos=True)
    return GenerateRequest(uuid.uuid4().hex, ids, sampling)


async def _ahead(
    caller: Client, prefill: Worker, decode: Worker, request: GenerateRequest
) -> float:
    """Seconds from prefill's answer until a decode placed before has the KV."""
    endpoint = {**prefill.info["kv_transfer_params"], "remote_request_id": request.request_id}
    ahead = msgspec.structs.replace(request, kv_transfer_params=endpoint)
    way_s = await _round_trip(caller, prefill)
    before = await _counted(caller, decode)
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        group.create_task(_events(caller, decode, ahead))
        await _prefill(caller, prefill, request)
        answered = time.perf_counter()
    return await _fetched(caller, decode, before) - (answered - begun) + way_s


async def _round_trip(caller: Client, worker: Worker) -> float:
    begun = time.perf_counter()
    await caller.get(f"{worker.url}/load")
    return time.perf_counter() - begun


async def _after(
    caller: Client, prefill: Worker, decode: Worker, request: GenerateRequest
) -> float:
    """Seconds that the connector counts for KV that is fetched after prefill's answer."""
    answer = await _prefill(caller, prefill, request)
    emitted = {choice.index: choice.token_ids for choice in answer.choices}
    before = await _counted(caller, decode)
    params = answer.kv_transfer_params
    await _events(
        caller, decode, msgspec.structs.replace(request, emitted=emitted, kv_transfer_params=params)
    )
    return await _fetched(caller, decode, before)


async def _fetched(caller: Client, decode: Worker, before: dict[str, Any]) -> float:
    """Seconds that decode's KV connector has counted since, for a single transfer."""
    after = await _counted(caller, decode)
    if after["transfers"] != before["transfers"] + 1:
        raise RuntimeError("decode did not fetch the KV")
    return float(after["seconds"] - before["seconds"])


async def _prefill(caller: Client, prefill: Worker, request: GenerateRequest) -> Any:
    wanted = msgspec.structs.replace(request, kv_transfer_params={"do_remote_decode": True})
    return await caller.generate(prefill, wanted)


async def _events(caller: Client, worker: Worker, request: GenerateRequest) -> list[float]:
    async with aclosing(caller.stream(worker, request)) as events:
        return [at async for at in events]


async def _counted(caller: Client, worker: Worker) -> dict[str, Any]:
    report = await caller.get(f"{worker.url}/integrity")
    (kv,) = [one for one in report["transfers"] if one["connector"] == "kv"]
    return dict(kv)


async def _pictures(model: Path, cores: tuple[int, int], rounds: int) -> list[Row]:
    """TTFT with and without overlap, and when the first of many pictures is encoded."""
    frontend = Frontend.load(
        FrontendOptions(model=str(model), served_model_name=SERVED).to_config()
    )
    found: dict[tuple[int, str], list[float]] = {}
    async with client() as caller:
        with stages(model) as made:
            started = [made.start("encoder", cores[1]), made.start("prefill", cores[0])]
            encoder, prefill = [await ready(caller, process) for process in started]
            for number in range(rounds + 1):
                for count in PICTURES:
                    for overlap in (True, False):
                        request = await _rendered(frontend, count)
                        ttft, first = await _ttft(caller, encoder, prefill, request, overlap)
                        if number:
                            key = "with" if overlap else "without"
                            found.setdefault((count, key), []).append(ttft)
                            found.setdefault((count, "first"), []).append(first)
    await frontend.close()
    return _picture_rows({key: quartile(values) * 1e3 for key, values in found.items()})


def _picture_rows(times: dict[tuple[int, str], float]) -> list[Row]:
    made = []
    for count in PICTURES:
        ours, peer = times[count, "with"], times[count, "without"]
        name = f"TTFT of {count} pictures, overlapped beside one after the other, ms"
        made.append(at_most(name, ours, peer, 1.05))
    first, alone = times[PICTURES[-1], "first"], times[1, "first"]
    name = f"first embedding of {PICTURES[-1]} pictures beside that of one alone, ms"
    return [*made, at_most(name, first, alone, FIRST_BAR)]


async def _rendered(frontend: Frontend, count: int) -> RenderedRequest:
    """A request with pictures that no cache has."""
    parts: list[dict[str, Any]] = []
    for _ in range(count):
        url = "data:image/png;base64," + base64.b64encode(_picture()).decode()
        parts += [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "and"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0}
    chat = decode_chat(msgspec.json.encode(body))
    return await frontend.render_chat(chat, request_id=uuid.uuid4().hex)


def _picture() -> bytes:
    pixels = np.random.default_rng().integers(0, 255, (_SIDE, _SIDE, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


async def _ttft(
    caller: Client, encoder: Worker, prefill: Worker, rendered: RenderedRequest, overlap: bool
) -> tuple[float, float]:
    """Seconds from the first call until prefill's answer, and until the first embedding."""
    request, endpoint = rendered.generate, encoder.info["ec_transfer_params"] or {}
    wanted = msgspec.structs.replace(
        request, ec_transfer_params={item.mm_hash: endpoint for item in request.mm_items}
    )
    items = [
        EncodeItem(item.mm_hash, "image", item.length, item.grid, rendered.media[item.mm_hash])
        for item in request.mm_items
    ]
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        encoding = [
            group.create_task(caller.encode(encoder, item, request.request_id)) for item in items
        ]
        if not overlap:
            await asyncio.gather(*encoding)
        await caller.generate(prefill, wanted)
        answered = time.perf_counter()
    return answered - begun, min(task.result() for task in encoding) - begun
