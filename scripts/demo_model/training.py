"""The two phases of training: the vision tower with its heads, then the whole model."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from demo_model.architecture import build_model
from demo_model.learner import Learner, MasterOptimizer
from demo_model.steps import Step, Steps


@dataclass(frozen=True)
class Plan:
    """`minutes` in all, `see_share` of them for the first phase; `pictures` per step and process."""

    minutes: float
    workers: int
    device: str
    seed: int
    compiled: bool = False
    pictures: int = 11
    see_share: float = 0.2
    see_lr: float = 2e-3
    talk_lr: float = 1.5e-3
    warmup_steps: int = 100
    flat_share: float = 0.4


def train(plan: Plan, tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLForConditionalGeneration:
    """The trained model in fp32 on the CPU. Each worker process has one thread: kernels of tensors
    this small do not scale over threads, and gradients are averaged once per step."""
    with tempfile.TemporaryDirectory() as folder:
        args = (plan, tokenizer, Path(folder))
        if plan.workers == 1:
            _work(0, *args)
        else:
            mp.spawn(_work, args, nprocs=plan.workers)  # type: ignore[no-untyped-call]
        model = build_model(tokenizer, plan.seed)
        model.load_state_dict(torch.load(_weights(Path(folder)), weights_only=True))
    return model


def _weights(folder: Path) -> Path:
    return folder / "weights.pt"


def _work(rank: int, plan: Plan, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """One worker of training; the first leaves the weights in `folder`."""
    if plan.workers > 1:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=plan.workers
        )
    learner = _learner(plan, tokenizer)
    started = time.monotonic()
    see_plan = replace(plan, minutes=plan.minutes * plan.see_share)
    _phase(learner, Steps(tokenizer, plan.seed, 2 * plan.pictures, talk=False), see_plan, "see")
    left = plan.minutes - (time.monotonic() - started) / 60
    talk_plan = replace(plan, minutes=left)
    _phase(learner, Steps(tokenizer, plan.seed, plan.pictures, talk=True), talk_plan, "talk")
    if rank == 0:
        torch.save(learner.model.state_dict(), _weights(folder))
    if plan.workers > 1:
        dist.destroy_process_group()


def _learner(plan: Plan, tokenizer: PreTrainedTokenizerFast) -> Learner:
    model = build_model(tokenizer, plan.seed)
    # Written-out attention: see demo_model.vision.
    model.set_attn_implementation({"text_config": "eager"})
    learner = Learner(model).to(plan.device)
    if plan.compiled:
        learner.compile_parts()
    return learner


def _phase(learner: Learner, steps: Steps, plan: Plan, name: str) -> None:
    """Train for `plan.minutes`, then leave the fp32 weights in the learner."""
    learner.to(torch.bfloat16)
    optimizer = MasterOptimizer(learner, learner.language if name == "see" else None)
    rate = _see_rate if name == "see" else _talk_rate
    rank = dist.get_rank() if dist.is_initialized() else 0
    log = _Log(name, rank == 0)
    started, progress, number = time.monotonic(), 0.0, 0
    while progress < 1.0:
        step = steps[number * plan.workers + rank].to(plan.device)
        loss, parts = learner.loss(step)
        loss.backward()
        lr = rate(plan, progress) * min(1.0, (number + 1) / plan.warmup_steps)
        clock = (time.monotonic() - started) / (60 * plan.minutes)
        norm, progress = optimizer.step(lr, clock)
        number += 1
        log.add({**parts, "norm": norm}, number, progress)
    optimizer.restore(learner)


def _see_rate(plan: Plan, progress: float) -> float:
    return plan.see_lr * (1.0 - 0.7 * progress)


def _talk_rate(plan: Plan, progress: float) -> float:
    return plan.talk_lr * min(1.0, (1.0 - progress) / (1.0 - plan.flat_share))


class _Log:
    """Prints means over a hundred steps."""

    def __init__(self, name: str, active: bool) -> None:
        self._name, self._active = name, active
        self._sums: dict[str, float] = {}
        self._since = time.monotonic()

    def add(self, parts: dict[str, float], number: int, progress: float) -> None:
        for key, value in parts.items():
            self._sums[key] = self._sums.get(key, 0.0) + value / 100
        if number % 100:
            return
        if self._active:
            pace = (time.monotonic() - self._since) / 100
            means = " ".join(f"{key} {value:.3f}" for key, value in self._sums.items())
            line = f"{self._name} step {number} ({progress:.0%}, {pace:.2f} s/step): {means}"
            print(line, flush=True)
        self._sums, self._since = {}, time.monotonic()
