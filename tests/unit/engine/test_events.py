"""Cache events of a real engine: a follower of them knows exactly what it holds."""

import itertools
import random
from pathlib import Path

import msgspec

from connectors.config import ECConfig
from protocol.keys import BlockKeyChain, root_key
from protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EmbeddingRemoved,
    EmbeddingStored,
    short_key,
)
from protocol.types import GenerateRequest, SamplingParams
from services.engine.reports import load_of
from services.master.index.foreign_blocks import ForeignBlocks
from services.membership.config import parse_events
from tests.conftest import ModelDir
from tests.support.conversations import asking, picture
from tests.support.engines import engine, listening, request_of, run

BLOCK = 16


def add_up(events: list[CacheEvent]) -> tuple[set[object], set[str]]:
    """(blocks, embeddings) that are held; nothing comes twice, nothing leaves that is not there."""
    blocks: set[object] = set()
    media: set[str] = set()
    for event in events:
        match event:
            case BlockStored(block_hashes=names):
                assert not blocks & set(names)
                blocks |= set(names)
            case BlockRemoved(block_hashes=names):
                assert blocks >= set(names)
                blocks -= set(names)
            case AllBlocksCleared():
                blocks.clear()
            case EmbeddingStored(mm_hash=name, tokens=rows, size_bytes=size):
                assert name not in media and rows > 0 and size > 0
                media.add(name)
            case EmbeddingRemoved(mm_hash=name):
                media.remove(name)
    return blocks, media


def text(number: int, tokens: list[int], max_tokens: int) -> GenerateRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return GenerateRequest(f"r{number}", tokens, params)


def test_events_add_up_to_the_prefix_cache_after_any_eviction(model_dir: ModelDir) -> None:
    folder = model_dir("qwen2_5_vl")
    events = parse_events("", "127.0.0.1", default=True)
    worker = engine(folder, num_blocks=14, max_num_seqs=4, events=events)
    try:
        heard, draw = listening(worker), random.Random(3)
        assert worker.generate is not None
        blocks = worker.generate.scheduler.blocks
        for number in range(16):
            shared = [5 + draw.randrange(3)] * draw.randrange(1, 60)
            batch = [text(number * 10 + i, [*shared, 9 + i], draw.randrange(1, 24))
                     for i in range(draw.randrange(1, 4))]  # fmt: skip
            _, nothing = request_of(folder, asking("x"), "none")
            run(worker, [(source, nothing) for source in batch])
            if number % 6 == 5:
                worker.reset_caches(prefix=True, encoder=False)
                worker.step()
                assert blocks.known() == []
            assert add_up(heard)[0] == {short_key(key) for key in blocks.known()}
        assert {type(event) for event in heard} == {BlockStored, BlockRemoved, AllBlocksCleared}
        assert blocks.known()
    finally:
        worker.close()


def test_a_picture_s_blocks_can_be_named_from_their_events_alone(model_dir: ModelDir) -> None:
    """A reader that recomputes keys from tokens and extra keys, as of a foreign engine, finds ours;
    the embedding is told of as long as the store has it."""
    folder = model_dir("qwen2_5_vl")
    worker = engine(folder, events=parse_events("", "127.0.0.1", default=True))
    try:
        heard = listening(worker)
        case = asking("What is", picture(7), "in this image, and why is it there?")
        generate, encode = request_of(folder, case, "r", max_tokens=40, ignore_eos=True)
        generate = msgspec.structs.replace(generate, cache_salt="tenant")
        run(worker, [(generate, encode)])
        (item,) = generate.mm_items
        root = root_key(model=folder.name, revision="test", cache_salt="tenant")
        keys = BlockKeyChain(root, BLOCK, [item]).extend(generate.token_ids)
        reader = ForeignBlocks(folder.name, "test", 1000)
        named = [k for e in heard if isinstance(e, BlockStored) for k in reader.stored(e)]
        assert named[: len(keys)] == [short_key(key) for key in keys]
        assert reader.unmatched == 0 and len(named) > len(keys), "output is cached as well"
        assert add_up(heard)[1] == {item.mm_hash}
        worker.reset_caches(prefix=False, encoder=True)
        worker.step()
        assert add_up(heard)[1] == set()
    finally:
        worker.close()


def test_an_engine_without_an_encoder_tells_of_the_embeddings_it_has(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    folder, events = model_dir("qwen2_5_vl"), parse_events("", "127.0.0.1", default=True)
    ec = ECConfig("shared_storage", path=str(tmp_path))
    encoder = engine(folder, parts=("vision",), ec=ec, events=events)
    worker = engine(folder, parts=("language",), ec=ec, events=events, num_blocks=64)
    try:
        heard = listening(worker)
        pairs = [
            request_of(folder, asking(picture(40 + n), "What?"), f"r{n}", max_tokens=2)
            for n in range(3)
        ]
        assert encoder.encode is not None
        for _, encode in pairs:
            encoder.encode.add(encode)
        made = 0
        while made < len(pairs):
            made += len(encoder.step()[1])
        run(worker, pairs)
        assert add_up(heard)[1] == {g.mm_items[0].mm_hash for g, _ in pairs}
        worker.reset_caches(prefix=True, encoder=True)
        worker.step()
        assert add_up(heard)[1] == set()
    finally:
        worker.close()
        encoder.close()


def test_load_and_rates_are_those_of_the_engine(model_dir: ModelDir) -> None:
    """By a clock on which every step takes a millisecond: of a few steps on a busy machine one may
    take so much longer that the meter rightly makes nothing of them."""
    folder, ticks = model_dir("qwen2_5_vl"), itertools.count()
    worker = engine(folder, clock=lambda: next(ticks) / 1e3, num_blocks=64)
    try:
        for number in range(6):
            case = asking(picture(20 + number, 224, 112 + 56 * number), "What?")
            run(worker, [request_of(folder, case, f"p{number}", max_tokens=12)])
        load = load_of(worker)
        assert (load.queued, load.running, load.queued_tokens, load.context_tokens) == (0, 0, 0, 0)
        assert load.free_blocks == load.total_blocks == 64
        assert 0 < load.ec_bytes < load.ec_capacity_bytes
        rates = load.rates
        assert rates.encode_base_ms + 100 * rates.encode_ms_per_token > 0
        assert rates.prefill_base_ms + 100 * rates.prefill_ms_per_token > 0
        decode_ms = rates.decode_base_ms + rates.decode_ms_per_request
        assert decode_ms + 100 * rates.decode_ms_per_context_token > 0
        assert worker.generate is not None
        worker.generate.add(text(1, [7] * 40, 20))
        worker.generate.add(text(2, [8] * 30, 20))
        assert load_of(worker).queued_tokens == 70
        worker.step()
        busy = load_of(worker)
        assert (busy.queued, busy.running, busy.queued_tokens) == (0, 2, 2)
        assert busy.context_tokens == 70 and busy.free_blocks == 64 - 3 - 2
    finally:
        worker.close()
