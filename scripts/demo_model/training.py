"""The two phases of training: the vision tower with its heads, then the whole model."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from scripts.demo_model.architecture import build_model
from scripts.demo_model.learner import Learner, MasterOptimizer
from scripts.demo_model.steps import Steps

SEE, TALK = "see", "talk"
SAVE_EVERY = 500  # steps


@dataclass(frozen=True)
class Plan:
    """How long and how a model is trained: first to see, then to talk.

    `minutes`: in all. On a CPU of one worker's processor time: other work on the machine makes
    training slower but not worse.
    `workers`: processes; `device`: cpu or cuda.
    `seed`: of weights and pictures.
    `compiled`: by `torch.compile`.
    `checkpoint`: file to save to and to continue from, None for none.
    `pictures`: in each step of a worker.
    `see_share`: of the minutes, for the first phase.
    `see_lr`, `talk_lr`: highest learning rates of the phases.
    `warmup_steps`: until they are reached.
    `flat_share`: of the second phase, before its rate begins to fall.
    """

    minutes: float
    workers: int
    device: str
    seed: int
    compiled: bool = False
    checkpoint: Path | None = None
    pictures: int = 11
    see_share: float = 0.25
    see_lr: float = 5e-3
    talk_lr: float = 3e-3
    warmup_steps: int = 100
    flat_share: float = 0.4

    def clock(self) -> float:
        """Seconds of training since some moment."""
        return time.monotonic() if self.device == "cuda" else time.process_time()

    def seconds(self, phase: str) -> float:
        """Time of a phase."""
        return 60 * self.minutes * (self.see_share if phase == SEE else 1 - self.see_share)

    def see_scale(self, name: str) -> float:
        """Factor of a parameter's learning rate in the first phase."""
        return 0.0 if "language" in name else 1.0

    def talk_scale(self, name: str) -> float:
        """Factor of a parameter's learning rate in the second phase: the vision tower has learned
        its part, and the language model learns faster from tokens that keep still."""
        return 1.0 if "language" in name else 0.3

    def lr(self, phase: str, progress: float, number: int) -> float:
        """Learning rate of step `number` at `progress` (0 to 1) through a phase."""
        warm = min(1.0, (number + 1) / self.warmup_steps)
        if phase == SEE:
            return warm * self.see_lr * (1.0 - 0.8 * progress)
        return warm * self.talk_lr * min(1.0, (1.0 - progress) / (1.0 - self.flat_share))


def train(plan: Plan, tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLForConditionalGeneration:
    """The trained model in fp32 on the CPU. Each worker process has one thread: kernels of tensors
    this small do not scale over threads, and gradients are averaged once per step. A checkpoint
    file that exists is continued from."""
    with tempfile.TemporaryDirectory() as folder:
        args = (plan, tokenizer, Path(folder))
        if plan.workers == 1:
            _work(0, *args)
        else:
            spawn(_work, args, nprocs=plan.workers)  # type: ignore[no-untyped-call]
        model = build_model(tokenizer, plan.seed)
        model.load_state_dict(torch.load(_weights(Path(folder)), weights_only=True))
    return model


def _weights(folder: Path) -> Path:
    return folder / "weights.pt"


def _work(rank: int, plan: Plan, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """One worker of training; the first leaves the weights in `folder`."""
    if plan.device == "cpu":
        torch.set_num_threads(1)
    if plan.workers > 1:
        meeting = f"file://{folder}/meeting"
        dist.init_process_group("gloo", meeting, rank=rank, world_size=plan.workers)
    learner = _learner(plan, tokenizer)
    phase, progress = _resume(learner, plan)
    for name in (SEE, TALK):
        if phase in (None, name):
            _Phase(name, plan, learner, tokenizer, rank).run(progress)
            phase, progress = None, 0.0
    if rank == 0:
        torch.save(learner.model.state_dict(), _weights(folder))
    if plan.workers > 1:
        dist.destroy_process_group()


def _learner(plan: Plan, tokenizer: PreTrainedTokenizerFast) -> Learner:
    model = build_model(tokenizer, plan.seed)
    # Written-out attention: see scripts.demo_model.vision.
    model.set_attn_implementation({"text_config": "eager"})
    learner = Learner(model).to(plan.device)
    if plan.compiled:
        learner.compile_parts()
    return learner


def _resume(learner: Learner, plan: Plan) -> tuple[str | None, float]:
    """Load the checkpoint if there is one; the phase it was taken in and how far that was."""
    if plan.checkpoint is None or not plan.checkpoint.exists():
        return None, 0.0
    saved = torch.load(plan.checkpoint, weights_only=True)
    learner.load_state_dict(saved["weights"], strict=False)
    return saved["phase"], saved["progress"]


class _Phase:
    """One phase of training in one worker."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        learner: Learner,
        tokenizer: PreTrainedTokenizerFast,
        rank: int,
    ) -> None:
        self._name, self._plan, self._learner, self._rank = name, plan, learner, rank
        self._steps = Steps(tokenizer, plan.seed, plan.pictures, talk=name == TALK)
        learner.lower_precision()
        self._optimizer = MasterOptimizer(
            learner, plan.see_scale if name == SEE else plan.talk_scale
        )
        self._log = _Log(name, rank == 0)

    def run(self, progress: float) -> None:
        """Train from `progress` (0 to 1) to the end; leave fp32 weights in the learner."""
        seconds = self._plan.seconds(self._name)
        started = self._plan.clock() - progress * seconds
        # Numbers far from those that were used before the checkpoint.
        first = number = int(progress * 2**20)
        while progress < 1.0:
            lr = self._plan.lr(self._name, progress, number - first)
            clock = (self._plan.clock() - started) / seconds
            progress = self._step(number, lr, clock)
            number += 1
            if number % SAVE_EVERY == 0:
                self._save(progress)
        self._optimizer.restore(self._learner)
        self._save(progress)

    def _step(self, number: int, lr: float, clock: float) -> float:
        """One update; the progress that all workers agree on."""
        step = self._steps[number * self._plan.workers + self._rank].to(self._plan.device)
        loss, parts = self._learner.loss(step)
        torch.autograd.backward(loss)
        norm, progress = self._optimizer.step(lr, clock)
        self._log.add({**parts, "norm": norm}, progress)
        return progress

    def _save(self, progress: float) -> None:
        """Write the checkpoint, whole or not at all."""
        if self._plan.checkpoint is None or self._rank:
            return
        weights = self._learner.state_dict() | self._optimizer.values(self._learner)
        state: dict[str, Any] = {"phase": self._name, "progress": progress, "weights": weights}
        fresh = self._plan.checkpoint.with_suffix(".new")
        torch.save(state, fresh)
        fresh.rename(self._plan.checkpoint)


class _Log:
    """Prints means over a hundred steps."""

    def __init__(self, name: str, active: bool) -> None:
        self._name, self._active = name, active
        self._sums: dict[str, float] = {}
        self._count = 0
        self._since = time.monotonic()

    def add(self, parts: dict[str, float], progress: float) -> None:
        """Take note of one step."""
        self._count += 1
        for key, value in parts.items():
            self._sums[key] = self._sums.get(key, 0.0) + value / 100
        if self._count % 100:
            return
        if self._active:
            pace = (time.monotonic() - self._since) / 100
            means = " ".join(f"{key} {value:.3f}" for key, value in self._sums.items())
            print(f"{self._name} {progress:.1%}, {pace:.2f} s/step: {means}", flush=True)
        self._sums, self._since = {}, time.monotonic()
