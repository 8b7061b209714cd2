"""Our sampler beside transformers' logits processors and `torch.multinomial`.

    python -m benchmarks.bench_sampler [--quick] [--json FILE] [--threads N]

A row of the table is the time that one of 8 rows of logits takes, in ms, with a vocabulary of
152,000, from the logits on the device to token ids on the host. transformers' processors are what
its `generate` runs. The comparison flatters them: all rows of their batch ask for the same, and
none has a seed. Logits are normal with a standard deviation of 3, of which a top-p of 0.9 keeps
thousands of tokens; of the `peaked` ones, with 12, as where a model is sure of the next word, it
keeps a few.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from benchmarks.common.environment import start_as_an_engine
from benchmarks.common.rows import Row, arguments, at_most, finish, hardware, head, line
from protocol.keys import BlockKeyChain
from protocol.types import GenerateRequest, SamplingParams
from services.engine.sampling.sampler import Sampler
from services.engine.scheduling.request import Request

VOCABULARY = 152_000
ROWS = 8
PROMPT, OUTPUT = 1000, 100  # tokens that penalties look at
ROUNDS, QUICK_ROUNDS = 15, 3
TOP_LOGPROBS = 5


@dataclass(frozen=True)
class Kind:
    """What all rows of a batch ask for; `peer` makes of logits [ROWS, VOCABULARY] and the tokens so
    far [ROWS, n] what transformers would."""

    name: str
    sampling: dict[str, Any]
    spread: float = 3.0
    processors: Sequence[Any] = field(default=())

    def peer(self, logits: torch.Tensor, tokens: torch.Tensor) -> object:
        scores = LogitsProcessorList(self.processors)(tokens, logits)
        if not self.sampling.get("temperature"):
            chosen = scores.argmax(dim=-1)
        else:
            chosen = torch.multinomial(torch.softmax(scores, dim=-1), 1)[:, 0]
        if "logprobs" not in self.sampling:
            return chosen.tolist()
        values = torch.log_softmax(logits, dim=-1)
        best = values.topk(TOP_LOGPROBS, dim=-1)
        own = values.gather(1, chosen[:, None])
        return chosen.tolist(), own.tolist(), best.values.tolist(), best.indices.tolist()


WARM = TemperatureLogitsWarper(0.8)
KINDS = (
    Kind("greedy", {"temperature": 0.0}),
    Kind("temperature", {"temperature": 0.8}, 3.0, (WARM,)),
    Kind("top-k 50", {"temperature": 0.8, "top_k": 50}, 3.0, (WARM, TopKLogitsWarper(50))),
    Kind("top-p 0.9", {"temperature": 0.8, "top_p": 0.9}, 3.0, (WARM, TopPLogitsWarper(0.9))),
    Kind(
        "top-p 0.9, peaked", {"temperature": 0.8, "top_p": 0.9}, 12.0, (WARM, TopPLogitsWarper(0.9))
    ),
    Kind(
        "top-k 50, top-p 0.9",
        {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
        3.0,
        (WARM, TopKLogitsWarper(50), TopPLogitsWarper(0.9)),
    ),
    Kind(
        "greedy, repetition penalty",
        {"temperature": 0.0, "repetition_penalty": 1.1},
        3.0,
        (RepetitionPenaltyLogitsProcessor(1.1),),
    ),
    Kind(
        "greedy, all penalties",
        {
            "temperature": 0.0,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
        },
        3.0,
        (RepetitionPenaltyLogitsProcessor(1.1),),
    ),
    Kind("greedy, top-5 logprobs", {"temperature": 0.0, "logprobs": TOP_LOGPROBS}),
)


def batch(kind: Kind, device: torch.device, seed: int) -> tuple[torch.Tensor, list[Request]]:
    """Logits float32[ROWS, VOCABULARY] and who asks for them."""
    random = np.random.default_rng(seed)
    logits = random.standard_normal((ROWS, VOCABULARY), dtype=np.float32) * kind.spread
    requests = []
    for row in range(ROWS):
        tokens = random.integers(VOCABULARY, size=PROMPT + OUTPUT).tolist()
        source = GenerateRequest(
            f"{row}", tokens[:PROMPT], SamplingParams(seed=row, **kind.sampling)
        )
        positions = np.zeros((1, PROMPT), np.int64)
        keys = BlockKeyChain(b"", 16, ())
        requests.append(Request(source, 0, row, tokens, positions, 0, keys))
    return torch.from_numpy(logits).to(device), requests


def median_ms(call: Callable[[], object], rounds: int) -> float:
    """Of one row."""
    call()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3 / ROWS


@torch.inference_mode()
def measure(kind: Kind, device: torch.device, rounds: int, seed: int) -> Row:
    logits, requests = batch(kind, device, seed)
    tokens = torch.tensor([request.tokens for request in requests], device=device)
    sampler = Sampler(eos_token_ids=(0,))
    ours = median_ms(lambda: sampler.sample(logits, requests), rounds)
    peer = median_ms(lambda: kind.peer(logits, tokens), rounds)
    return at_most(f"{kind.name}, ms a row", ours, peer)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = arguments("bench_sampler", __doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: PyTorch's default")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(hardware(("torch", "transformers"), args.seed))
    print(f"device {device}, {torch.get_num_threads()} CPU threads")
    print(head())
    rows = []
    for kind in KINDS:
        rows.append(measure(kind, device, QUICK_ROUNDS if args.quick else ROUNDS, args.seed))
        print(line(rows[-1]), flush=True)
    return finish(rows, args.json)


if __name__ == "__main__":
    start_as_an_engine("benchmarks.bench_sampler")
    sys.exit(main())
