"""A scheduler whose requests and pictures a test adds, and whose steps put out tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from connectors.base import EC_TENSOR, Entry
from connectors.ec.local import LocalEC
from protocol.keys import BlockKeyChain
from protocol.types import GenerateRequest, MMItem, SamplingParams
from services.engine.model.embedding_layout import EmbeddingLayout
from services.engine.scheduling.block_manager import BlockManager
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.limits import Limits
from services.engine.scheduling.request import Request, RequestKey
from services.engine.scheduling.scheduler import Scheduler

SIZE = 16
LAYOUT = EmbeddingLayout(1, 0, torch.float32)


class Case:
    """A scheduler whose steps put out a token for each choice that samples."""

    def __init__(
        self, limits: Limits, num_blocks: int = 4096, embedding_tokens: int = 1 << 20
    ) -> None:
        self.store = LocalEC(1 << 24, 30.0, 600.0)
        capacity = embedding_tokens * LAYOUT.token_bytes
        embeddings = EmbeddingCache(self.store, capacity, LAYOUT)
        self.awaiting: dict[RequestKey, int] = {}  # steps that a request waits for KV from a tier
        self.scheduler = Scheduler(BlockManager(num_blocks, SIZE), embeddings, limits)
        self.arrivals = 0

    def add(
        self, length: int, most: int = 1000, *items: MMItem, n: int = 1, **more: Any
    ) -> Request:
        sampling = SamplingParams(max_tokens=most, n=n)
        self.arrivals += 1
        prompt = [self.arrivals] * length
        source = GenerateRequest(f"r{self.arrivals}", prompt, sampling, list(items), **more)
        request = Request(
            source, 0, self.arrivals, list(prompt), np.zeros((1, length), np.int64), 0,
            BlockKeyChain(b"", SIZE, items), rank=source.priority,
        )  # fmt: skip
        self.scheduler.add(request)
        self.scheduler.embeddings.pin(request)
        return request

    def store_picture(self, item: MMItem) -> None:
        self.store.offer(item.mm_hash, Entry({EC_TENSOR: torch.zeros(item.length, 1)}, ("",)))

    def step(self, most: int | None = None) -> list[Chunk]:
        assert self.scheduler.embeddings.poll() == []
        chunks = self.scheduler.schedule(lambda request: None, most, self.awaits)
        for chunk in chunks:
            self.scheduler.computed(chunk.request, chunk.end)
            for request in chunk.samplers:
                request.tokens.append(1)
                if request.num_output == request.sampling.max_tokens:
                    self.scheduler.finish(request)
        return chunks

    def awaits(self, request: Request, matched: Sequence[int]) -> bool:
        self.awaiting[request.key] = self.awaiting.get(request.key, 0) - 1
        return self.awaiting[request.key] >= 0

    def check(self) -> None:
        owners = [request.blocks for request in self.scheduler.all_requests()]
        assert self.scheduler.blocks.check_integrity(owners) == []


def prompts(chunks: list[Chunk]) -> int:
    return sum(chunk.count for chunk in chunks if not chunk.decodes)


def pictures_of(numbers: list[int], length: int) -> list[MMItem]:
    """Of 16 tokens each, one behind the other, with a token between them."""
    items = [MMItem(f"picture {number}", "image", 8 + 17 * place, 16)
             for place, number in enumerate(numbers)]  # fmt: skip
    return [item for item in items if item.end <= length]
